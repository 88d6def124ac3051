"""Leases of one mapped image: held until the memory is unmapped, and given back once each."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from trims_client.mapping.mapped_image import HeldLeases, Lease, MappedImage


def channel() -> Any:
    """Return the part of a connection that leases need."""
    return SimpleNamespace(owed=deque())


def mapped(place: str = "cpu") -> tuple[MappedImage, HeldLeases]:
    attachment: Any = SimpleNamespace()
    held = HeldLeases()
    return MappedImage("key", place, (1, 2), attachment, held), held


def test_all_leases_go_back_once_when_the_memory_is_unmapped_and_later_ones_at_once() -> None:
    image, held = mapped()
    granted = channel()
    for number in (1, 2):
        image.hold(Lease(granted, number))
    assert not image.unmapped
    held.release()
    held.release()
    assert image.unmapped
    assert sorted(granted.owed) == [1, 2]
    image.hold(Lease(granted, 3))
    assert (granted.owed[-1], image.leases) == (3, set())


def test_a_lease_is_spared_only_by_another_one_of_its_own_connection() -> None:
    image, _ = mapped()
    before, after = channel(), channel()
    first, second, other = Lease(before, 1), Lease(before, 2), Lease(after, 1)
    image.hold(first)
    image.hold(other)
    assert not image.spares(first)
    image.hold(second)
    assert image.spares(first)
    assert image.lease_of(after, 1) is other
    image.forget(before, 2)
    assert not image.spares(first)


def test_each_connection_is_asked_for_a_lease_once_where_one_is_needed() -> None:
    image, _ = mapped()
    granted = channel()
    assert image.ask_once(granted)
    assert not image.ask_once(granted)
    in_place, _ = mapped("file")
    assert not in_place.ask_once(granted), "no daemon can take an artifact's own file away"
    image.hold(Lease(granted, 1))
    assert not image.lacks_lease(granted)
