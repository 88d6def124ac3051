"""Limits that transfers share, on a clock of the test's own."""

from __future__ import annotations

from trims.sources.transfer.limits import Bandwidth, Limits


def test_without_a_limit_nothing_waits() -> None:
    assert Bandwidth(None).pause_s(1 << 40) == 0.0


def test_those_who_share_a_rate_wait_for_each_other() -> None:
    rate = Bandwidth(1000.0, lambda: 50.0)
    assert rate.pause_s(250) == 0.0, "a burst of a quarter of a second is free"
    assert rate.pause_s(500) == 0.5
    assert rate.pause_s(500) == 1.0


def test_what_was_not_taken_for_long_is_not_saved_up() -> None:
    now = [0.0]
    rate = Bandwidth(1000.0, lambda: now[0])
    now[0] = 1e6
    assert rate.pause_s(1250) == 1.0


# fault (sources): the wall clock is set -> nothing
def test_a_clock_that_stands_still_or_goes_back_makes_no_pause_negative() -> None:
    now = [100.0]
    rate = Bandwidth(1000.0, lambda: now[0])
    assert rate.pause_s(1250) == 1.0
    now[0] = 0.0
    assert rate.pause_s(0) >= 0.0


def test_one_transfer_has_no_more_connections_than_all_together() -> None:
    limits = Limits(connections=2, each=8)
    assert limits.each == 2
    assert [limits.slots.acquire(blocking=False) for _ in range(3)] == [True, True, False]
