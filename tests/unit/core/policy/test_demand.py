"""Demand: opens count less the more opens came after them, and what was opened long ago is forgotten first."""

from __future__ import annotations

import pytest

from trims.core.policy import demand
from trims.core.policy.demand import HALF_LIFE_OPENS, Demand


def test_an_open_counts_half_after_the_half_life() -> None:
    levels = Demand()
    levels.opened("a")
    assert levels.of("a") == 1.0
    for _ in range(HALF_LIFE_OPENS):
        levels.opened("b")
    assert levels.of("a") == pytest.approx(0.5)


def test_opens_close_to_each_other_add_up() -> None:
    levels = Demand()
    for _ in range(3):
        levels.opened("a")
    assert 2.99 < levels.of("a") < 3.0
    assert levels.of("never opened") == 0.0


def test_opens_are_counted_in_their_order_however_many_come_between_two_questions() -> None:
    asked, unasked = Demand(), Demand()
    for number in range(3 * demand.COUNTED_AT_ONCE + 5):
        for levels in (asked, unasked):
            levels.opened(f"image {number % 7}")
        asked.of("image 0")
        assert len(unasked.uncounted) < demand.COUNTED_AT_ONCE
    for number in range(7):
        assert asked.of(f"image {number}") == unasked.of(f"image {number}") > 0


def test_the_images_in_least_demand_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "_REMEMBERED", 2)
    levels = Demand()
    for key in ("often", "often", "old", "older", "young", "youngest"):
        levels.opened(key)
    assert levels.of("old") == 0.0
    assert levels.of("often") > 1.9
    assert levels.of("youngest") == 1.0


def test_what_was_opened_under_one_key_is_carried_to_another() -> None:
    levels = Demand()
    for key in ("file", "file", "image", "other"):
        levels.opened(key)
    before = levels.of("file") + levels.of("image")
    levels.carry("file", "image")
    assert levels.of("image") == pytest.approx(before)
    assert levels.of("file") == 0.0
    levels.carry("never opened", "other")
    assert 0.9 < levels.of("other") <= 1.0
