"""Replicas in the cloud, by the books alone: what is filled from them, and what never takes them."""

from __future__ import annotations

import sys

import pytest
from books import Bench, error_of, kinds

from trims.core.errors import SourceUnavailableError
from trims.core.lease import Waiter
from trims.core.place import CLOUD, CPU, DISK, GPU, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import State
from trims.core.residency.events import (
    Adopted,
    EvictRequested,
    Fill,
    Filled,
    FillFailed,
    Free,
    KeepAlive,
    PinChanged,
    ReplicaBroken,
    Requested,
)
from trims.core.residency.residency import Residency


class Cloudy(Bench):
    """Books that have images in the cloud as well."""

    def __init__(self, max_images: int = sys.maxsize) -> None:
        super().__init__()
        places = {CPU: 100, DISK: 1000, GPU: 100, CLOUD: 1 << 60}
        self.residency = Residency(places, {place: LeastRecentlyUsed() for place in places}, max_images=max_images)

    def in_cloud(self, key: str, nbytes: int = 40) -> None:
        self.feed(Adopted, key=key, place=CLOUD, nbytes=nbytes, cost_s=1.0, descriptors=0, why="found")

    def filled_at(self, key: str, place: Place) -> None:
        self.feed(Filled, key=key, place=place, generation=self.generation(key, place), cost_s=1.0)


def fills(out: list[object]) -> list[Fill]:
    return [each for each in out if isinstance(each, Fill)]


@pytest.mark.parametrize("place", [CPU, DISK])
def test_a_replica_of_the_host_is_filled_from_the_cloud(place: Place) -> None:
    bench = Cloudy()
    bench.in_cloud("a")
    (fill,) = fills(bench.ask("a", place=place))
    assert (fill.place, fill.source) == (place, CLOUD)
    bench.filled_at("a", place)
    assert bench.residency.find("a", CLOUD).state is State.SEALED  # type: ignore[union-attr]


def test_a_device_is_filled_from_the_host_and_never_from_the_cloud() -> None:
    bench = Cloudy()
    bench.in_cloud("a")
    out = bench.ask("a", place=GPU)
    assert all(fill.source is not CLOUD for fill in fills(out) if fill.place == GPU)


def test_memory_is_the_source_where_both_are() -> None:
    bench = Cloudy()
    bench.in_cloud("a")
    bench.ask("a", place=CPU)
    bench.filled_at("a", CPU)
    (fill,) = fills(bench.ask("a", place=DISK))
    assert fill.source is CPU


def test_an_image_in_the_cloud_counts_for_no_capacity_here_and_makes_no_room() -> None:
    bench = Cloudy()
    for key in "abcdef":
        bench.in_cloud(key)
    bench.ask("a", place=CPU, session=1)
    bench.filled_at("a", CPU)
    bench.ask("b", place=CPU, session=1)
    bench.filled_at("b", CPU)
    out = bench.ask("c", place=CPU, session=2, deadline_in_s=5)
    assert Free not in kinds(out)
    assert all(bench.residency.find(key, CLOUD) is not None for key in "abcdef")


def test_an_image_that_leaves_memory_stays_in_the_cloud() -> None:
    bench = Cloudy()
    bench.in_cloud("a")
    bench.ask("a", place=CPU, lease=False)
    bench.filled_at("a", CPU)
    out = bench.feed(EvictRequested, key="a", place=CPU, drain=False)
    assert [each.place for each in out if isinstance(each, Free)] == [CPU]
    bench.freed("a")
    assert bench.residency.find("a", CLOUD).state is State.SEALED  # type: ignore[union-attr]


def test_a_fetch_that_fails_is_the_answer_and_the_replica_stays() -> None:
    bench = Cloudy()
    bench.in_cloud("a")
    bench.ask("a", place=CPU)
    out = bench.feed(
        FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=SourceUnavailableError("away")
    )
    assert isinstance(error_of(out), SourceUnavailableError)
    assert bench.residency.find("a", CLOUD).state is State.SEALED  # type: ignore[union-attr]


def test_a_late_end_of_a_fetch_is_no_second_fill() -> None:
    bench = Cloudy()
    bench.in_cloud("a")
    bench.ask("a", place=CPU)
    generation = bench.generation("a")
    bench.filled_at("a", CPU)
    assert bench.feed(Filled, key="a", place=CPU, generation=generation, cost_s=1.0) == []
    assert bench.feed(Filled, key="a", place=CPU, generation=generation + 7, cost_s=1.0) == []


def test_a_broken_replica_in_the_cloud_is_forgotten_and_nothing_is_filled_from_it() -> None:
    bench = Cloudy()
    bench.in_cloud("a")
    generation = bench.generation("a", CLOUD)
    bench.feed(ReplicaBroken, key="a", place=CLOUD, generation=generation, reason="other bytes")
    waiter = Waiter(99, 1, True, None)
    out = bench.feed(Requested, key="a", place=CPU, waiter=waiter, keep=KeepAlive(None))
    assert all(fill.source is None for fill in fills(out))


def test_a_surplus_of_images_takes_none_from_the_cloud() -> None:
    bench = Cloudy(max_images=2)
    for key in "abc":
        bench.in_cloud(key, 10)
        bench.resident(key, 10, DISK)
    freed = [key for key in "abc" if bench.state(key, DISK) is not State.SEALED]
    assert len(freed) == 1
    assert all(bench.state(key, CLOUD) is State.SEALED for key in "abc")


def test_what_is_pinned_beyond_the_limit_of_images_is_no_fault_of_the_cloud() -> None:
    bench = Cloudy(max_images=1)
    for key in "ab":
        bench.in_cloud(key, 10)
        bench.feed(PinChanged, key=key, place=CPU, pinned=True)
        bench.resident(key, 10)
    bench.in_cloud("c", 10)
    bench.residency.validate()
    assert bench.state("c", CLOUD) is State.SEALED
