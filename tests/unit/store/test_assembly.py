"""A store is put together from settings and its surroundings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core.place import CPU, FILE
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.formats.base import Limits
from trims.store.assembly import StoreSettings, Surroundings, build_store
from trims.tiers.file import FileTier

if TYPE_CHECKING:
    from trims.daemon.main import Daemon


@pytest.mark.parametrize(("max_images", "most"), [(100, 92), (9, 1), (2, 1)])
def test_some_images_are_kept_in_reserve_and_one_may_always_be_open(max_images: int, most: int) -> None:
    assert StoreSettings(max_images=max_images).most_images == most


def test_each_life_has_a_range_of_leases_of_its_own() -> None:
    first, second, again = (StoreSettings(life=life).first_lease for life in (0, 1, 1 << 20))
    assert (first, second - first, again) == (1, 1 << 32, first)
    assert 1 <= StoreSettings().first_lease < 1 << 53


def test_a_store_has_the_places_and_the_clock_that_it_was_given(daemon: Daemon) -> None:
    tier = FileTier()
    settings, surroundings = StoreSettings(workers=1), Surroundings(clock=lambda: 7.0)
    store = build_store(
        [tier], {FILE: LeastRecentlyUsed()}, daemon.store.resolver, daemon.catalog,
        limits=Limits(), settings=settings, surroundings=surroundings,
    )  # fmt: skip
    try:
        assert store.tiers == {FILE: tier}
        assert CPU not in store.tiers
        assert store.next_due_s() is None
    finally:
        store.stop()
