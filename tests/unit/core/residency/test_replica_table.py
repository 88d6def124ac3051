"""The table of replicas: what is found by image and place, what is remembered, and what is not walked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from books import OTHER, Devices

from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import Replica, State
from trims.core.residency import replica_table as module
from trims.core.residency.events import Adopted, Fill, Measure, Measured, Requested
from trims.core.residency.replica_table import ReplicaTable
from trims.core.residency.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Iterator

GPU = Place.parse("gpu:0")
PLACES = (CPU, DISK, GPU, Place.parse("gpu:1"))


def sealed(table: ReplicaTable, key: str, place: Place) -> Replica:
    replica = table.add(key, place)
    replica.step(State.SEALED, 0.0, "adopted after a restart")
    return replica


def test_an_image_is_found_at_all_its_places_fastest_first_and_nothing_else_is() -> None:
    table = ReplicaTable(PLACES)
    for place in (DISK, GPU, CPU):
        table.add("a", place)
    table.add("b", CPU)
    assert [(replica.key, replica.place) for replica in table.places_of("a")] == [("a", GPU), ("a", CPU), ("a", DISK)]
    assert table.places_of("c") == []


def test_what_was_removed_is_not_found_and_leaves_nothing_in_the_index() -> None:
    table = ReplicaTable(PLACES)
    there, gone = table.add("a", DISK), table.add("a", CPU)
    table.remove(gone)
    assert (table.find("a", CPU), table.places_of("a")) == (None, [there])
    table.remove(there)
    assert (table.replicas, table.by_key) == ({}, {})


def test_the_source_is_the_fastest_sealed_replica_elsewhere() -> None:
    table = ReplicaTable(PLACES)
    target, on_disk = table.add("a", GPU), sealed(table, "a", DISK)
    table.add("a", CPU)
    sealed(table, "b", CPU)
    assert table.source_of(target) is on_disk
    assert table.source_of(on_disk) is None, "neither itself, nor what is not sealed, nor another image"


def test_each_incarnation_has_a_generation_of_its_own_and_the_uses_of_the_one_before() -> None:
    table = ReplicaTable(PLACES)
    first = table.add("a", CPU)
    first.uses = 3
    table.remove(first)
    second = table.add("a", CPU)
    assert second.generation > first.generation
    assert second.uses == 3


def test_uses_are_remembered_of_the_images_that_left_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_IMAGES", 2)
    table = ReplicaTable(PLACES)
    for key in ("a", "b", "c"):
        replica = table.add(key, CPU)
        replica.uses = 1
        table.remove(replica)
    assert [table.add(key, CPU).uses for key in ("a", "b", "c")] == [0, 1, 1]


class _NotToBeWalked:
    def __iter__(self) -> Iterator[Replica]:
        raise AssertionError("all replicas were walked")


class _Unwalked(dict[tuple[str, Place], Replica]):
    """Finds a replica; looking at all of them is a failure."""

    def __iter__(self) -> Iterator[tuple[str, Place]]:
        raise AssertionError("all replicas were walked")

    def values(self) -> _NotToBeWalked:  # type: ignore[override]
        return _NotToBeWalked()

    def items(self) -> _NotToBeWalked:  # type: ignore[override]
        return _NotToBeWalked()


@pytest.mark.parametrize("on_disk", [True, False], ids=["from the disk tier", "from the artifact"])
def test_a_cold_open_that_has_room_does_not_walk_all_replicas(on_disk: bool) -> None:
    places = (CPU, DISK)
    residency = Residency(dict.fromkeys(places, 1000), {place: LeastRecentlyUsed() for place in places})
    for key in ("x", "y", *("a" * on_disk)):
        residency.handle(Adopted(at_s=0.0, key=key, place=DISK, nbytes=10))
    residency.table.replicas = _Unwalked(residency.table.replicas)
    out = residency.handle(Requested(at_s=1.0, key="a", place=CPU, waiter=Waiter(1, 1, True, 9.0)))
    if not on_disk:
        assert isinstance(out[-1], Measure)
        facts: dict[str, Any] = {"key": "a", "place": CPU, "generation": residency.replicas["a", CPU].generation}
        out = residency.handle(Measured(at_s=2.0, measurement=out[-1].measurement, nbytes=10, **facts))
    assert isinstance(out[-1], Fill)
    assert residency.places_of("a")


def test_a_device_copies_from_its_peer() -> None:
    bench = Devices(peers=True)
    bench.resident("a", 40, OTHER, CPU)
    (fill,) = bench.ask("a", place=GPU)
    assert isinstance(fill, Fill)
    assert fill.source == OTHER


def test_an_image_for_the_disk_is_taken_from_memory_rather_than_from_a_device() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU, CPU)
    (fill,) = bench.ask("a", place=DISK)
    assert isinstance(fill, Fill)
    assert fill.source == CPU
