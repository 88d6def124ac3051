"""The shelf: what is found by image and place, what is remembered of images that are gone, and what nobody walks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core import shelf as module
from trims.core.events import Adopted, Fill, Measure, Measured, Requested
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, Place
from trims.core.policy import LeastRecentlyUsed
from trims.core.replica import Replica, State
from trims.core.residency import Residency
from trims.core.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterator

GPU = Place.parse("gpu:0")


def sealed(shelf: Shelf, key: str, place: Place) -> Replica:
    replica = shelf.add(key, place)
    replica.step(State.SEALED, 0.0, "adopted after a restart")
    return replica


def test_an_image_is_found_at_all_its_places_fastest_first_and_nothing_else_is() -> None:
    shelf = Shelf()
    for place in (DISK, GPU, CPU):
        shelf.add("a", place)
    shelf.add("b", CPU)
    assert [(replica.key, replica.place) for replica in shelf.places_of("a")] == [("a", GPU), ("a", CPU), ("a", DISK)]
    assert shelf.places_of("c") == []


def test_what_was_removed_is_not_found_and_leaves_nothing_in_the_index() -> None:
    shelf = Shelf()
    there, gone = shelf.add("a", DISK), shelf.add("a", CPU)
    shelf.remove(gone)
    assert (shelf.find("a", CPU), shelf.places_of("a")) == (None, [there])
    shelf.remove(there)
    assert (shelf.replicas, shelf.by_key) == ({}, {})


def test_the_source_is_the_fastest_sealed_replica_elsewhere() -> None:
    shelf = Shelf()
    target, on_disk = shelf.add("a", GPU), sealed(shelf, "a", DISK)
    shelf.add("a", CPU)
    sealed(shelf, "b", CPU)
    assert shelf.source_of(target) is on_disk
    assert shelf.source_of(on_disk) is None, "neither itself, nor what is not sealed, nor another image"


def test_each_incarnation_has_a_generation_of_its_own_and_the_uses_of_the_one_before() -> None:
    shelf = Shelf()
    first = shelf.add("a", CPU)
    first.uses = 3
    shelf.remove(first)
    second = shelf.add("a", CPU)
    assert second.generation > first.generation
    assert second.uses == 3


def test_uses_are_remembered_of_the_images_that_left_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_IMAGES", 2)
    shelf = Shelf()
    for key in ("a", "b", "c"):
        replica = shelf.add(key, CPU)
        replica.uses = 1
        shelf.remove(replica)
    assert [shelf.add(key, CPU).uses for key in ("a", "b", "c")] == [0, 1, 1]


def test_due_next_is_the_earliest_deadline_or_keep_alive() -> None:
    shelf = Shelf()
    assert shelf.next_due_s() is None
    one, other = shelf.add("a", CPU), shelf.add("b", CPU)
    one.waiters = {1: Waiter(1, 1, True, None), 2: Waiter(2, 1, True, 7.0)}
    assert shelf.next_due_s() == 7.0
    other.keep_until_s = 5.0
    assert shelf.next_due_s() == 5.0


class _NotToBeWalked:
    def __iter__(self) -> Iterator[Replica]:
        raise AssertionError("all replicas were walked")


class _Unwalked(dict[tuple[str, Place], Replica]):
    """Finds, and fails who looks at everything."""

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
    residency.shelf.replicas = _Unwalked(residency.shelf.replicas)
    out = residency.handle(Requested(at_s=1.0, key="a", place=CPU, waiter=Waiter(1, 1, True, 9.0)))
    if not on_disk:
        assert isinstance(out[-1], Measure)
        generation = residency.replicas["a", CPU].generation
        out = residency.handle(Measured(at_s=2.0, key="a", place=CPU, generation=generation, nbytes=10))
    assert isinstance(out[-1], Fill)
    assert residency.places_of("a")
