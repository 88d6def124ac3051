"""The pace of work behind readers: a bandwidth that all share, and no pause once a request waits."""

from __future__ import annotations

import threading
import time

import pytest

from trims.background.rate_limit import Behind, RateLimiter


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_bytes_take_as_long_as_the_bandwidth_says(clock: Clock) -> None:
    work = Behind(RateLimiter(1000.0, clock, clock.sleep), lambda: False)
    for done_bytes in (500, 1500, 1500, 4000):
        work.done(done_bytes)
    assert clock.now_s == pytest.approx(104.0)


def test_two_works_share_the_bandwidth(clock: Clock) -> None:
    pace = RateLimiter(1000.0, clock, clock.sleep)
    for work in (Behind(pace, lambda: False), Behind(pace, lambda: False)):
        work.moved(1000)
    assert clock.now_s == pytest.approx(102.0)


def test_bandwidth_that_was_not_used_is_not_saved_up(clock: Clock) -> None:
    work = Behind(RateLimiter(1000.0, clock, clock.sleep), lambda: False)
    clock.now_s += 60
    work.moved(2000)
    assert clock.now_s == pytest.approx(162.0)


def test_a_pause_that_a_request_ends_is_not_made_up_for_by_other_work(clock: Clock) -> None:
    pace = RateLimiter(1000.0, clock, clock.sleep)
    pace.keep(1_000_000, lambda: clock.now_s > 101)
    Behind(pace, lambda: False).moved(1000)
    assert clock.now_s == pytest.approx(102.0, abs=0.1)


@pytest.mark.parametrize("limit", [None, 1.0])
def test_there_is_no_pause_without_a_limit_or_while_a_request_waits(clock: Clock, limit: float | None) -> None:
    Behind(RateLimiter(limit, clock, clock.sleep), lambda: limit is not None).moved(1 << 40)
    assert clock.now_s == 100.0


def test_a_request_that_comes_to_wait_ends_the_pause() -> None:
    awaited = threading.Event()
    worker = threading.Thread(target=Behind(RateLimiter(1.0), awaited.is_set).moved, args=(3600,))
    worker.start()
    time.sleep(0.05)
    assert worker.is_alive()
    awaited.set()
    worker.join(30)
    assert not worker.is_alive()
