"""Keeping time: when the thread sleeps, what wakes it, and that no deadline added in between is lost."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import pytest

from trims.store import ticker as module
from trims.store.ticker import Ticker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Nothing here takes so long; only a failing test waits it out.
WAIT_S = 120.0
FOR_EVER_S = 1000.0


class Watched(threading.Condition):
    """Reports for how long the thread goes to sleep, and counts how often it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self.woken = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.sleeps.put(
            timeout
        )  # the lock is held until the thread sleeps: a thread that takes it next finds it asleep
        return super().wait(timeout)

    def notify(self, n: int = 1) -> None:
        self.woken += 1
        super().notify(n)


class Bench:
    """A ticker over a list of moments. `looked` and `ticked` are called in its thread, at the end of each."""

    def __init__(self) -> None:
        self.due: list[float] = []
        self.ticks: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.looked: Callable[[], None] = lambda: None
        self.ticked: Callable[[], None] = lambda: None
        self.ticker = Ticker()
        self.ticker._told = self.told = Watched()

    def next_due_s(self) -> float | None:
        found = min(self.due, default=None)
        self.looked()
        return found

    def tick(self, now_s: float) -> None:
        self.due = [moment for moment in self.due if moment > now_s]
        self.ticked()
        self.ticks.put(now_s)

    def add(self, in_s: float) -> float:
        """Add a deadline as a store does: first to the books, then by a call of the ticker. Return the moment."""
        at_s = time.monotonic() + in_s
        self.due.append(at_s)
        self.ticker.look_again(at_s)
        return at_s

    def asleep(self) -> float:
        """Wait until the thread goes to sleep; returns for how long, in seconds."""
        sleep_s = self.told.sleeps.get(timeout=WAIT_S)
        assert sleep_s is not None
        return sleep_s


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.ticker.stop()


@pytest.fixture
def sleeps_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the ticker sleep so long that only a notification wakes it while a test waits."""
    monkeypatch.setattr(module, "_LONGEST_S", FOR_EVER_S)


def test_it_never_sleeps_longer_than_a_second(bench: Bench) -> None:
    bench.due.append(time.monotonic() + FOR_EVER_S)
    bench.ticker.start(bench.next_due_s, bench.tick)
    assert 0 < bench.asleep() <= 1.0


def test_what_the_ticker_is_not_told_is_noticed_when_it_looks_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_S", 0.01)
    bench.ticker.start(bench.next_due_s, bench.tick)
    bench.asleep()
    bench.due.append(time.monotonic())
    bench.ticks.get(timeout=WAIT_S)
    assert bench.told.woken == 0


@pytest.mark.usefixtures("sleeps_long")
def test_what_is_due_when_it_starts_is_ticked_then_and_not_before(bench: Bench) -> None:
    at_s = bench.add(0.02)
    bench.ticker.start(bench.next_due_s, bench.tick)
    assert bench.ticks.get(timeout=WAIT_S) >= at_s
    assert bench.told.woken == 0


@pytest.mark.usefixtures("sleeps_long")
def test_told_of_a_moment_before_it_would_wake_it_ticks_at_that_moment(bench: Bench) -> None:
    bench.ticker.start(bench.next_due_s, bench.tick)
    assert bench.asleep() > WAIT_S
    at_s = bench.add(0.02)
    assert bench.told.woken == 1
    assert bench.ticks.get(timeout=WAIT_S) >= at_s


@pytest.mark.usefixtures("sleeps_long")
def test_it_is_woken_only_for_what_comes_before_it_would_wake(bench: Bench) -> None:
    first_s = bench.add(200.0)
    bench.ticker.start(bench.next_due_s, bench.tick)
    bench.asleep()
    bench.add(300.0)
    bench.ticker.look_again(first_s)
    assert bench.told.woken == 0
    bench.add(100.0)
    assert bench.told.woken == 1
    assert bench.asleep() <= 100.0
    bench.add(150.0)
    assert bench.told.woken == 1


@pytest.mark.parametrize("seen_in_s", [(), (500.0,)], ids=["saw nothing", "saw something later"])
@pytest.mark.usefixtures("sleeps_long")
def test_what_is_told_after_it_has_looked_and_before_it_sleeps_is_not_lost(
    bench: Bench, seen_in_s: tuple[float, ...]
) -> None:
    bench.due += [time.monotonic() + in_s for in_s in seen_in_s]
    moments: list[float] = []

    def once() -> None:
        bench.looked = lambda: None
        moments.append(bench.add(0.02))

    bench.looked = once
    bench.ticker.start(bench.next_due_s, bench.tick)
    assert bench.ticks.get(timeout=WAIT_S) >= moments[0]


@pytest.mark.usefixtures("sleeps_long")
def test_what_is_told_while_it_ticks_is_not_lost(bench: Bench) -> None:
    moments: list[float] = []

    def once() -> None:
        bench.ticked = lambda: None
        moments.append(bench.add(0.02))

    bench.ticked = once
    bench.add(0.0)
    bench.ticker.start(bench.next_due_s, bench.tick)
    bench.ticks.get(timeout=WAIT_S)
    assert bench.ticks.get(timeout=WAIT_S) >= moments[0]


@pytest.mark.usefixtures("sleeps_long")
def test_it_ends_at_once_also_from_its_sleep_and_ending_twice_is_harmless(bench: Bench) -> None:
    bench.ticker.start(bench.next_due_s, bench.tick)
    bench.asleep()
    for _ in range(2):
        bench.ticker.stop()
        assert not bench.ticker._thread.is_alive()


def test_one_that_was_never_started_can_be_stopped() -> None:
    Ticker().stop()


def test_a_tick_that_fails_is_logged_and_time_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    ticks: list[float] = []
    again = threading.Event()

    def tick(now_s: float) -> None:
        ticks.append(now_s)
        if len(ticks) == 1:
            raise RuntimeError("a bug in one tick")
        again.set()

    ticker = Ticker()
    ticker.start(lambda: 0.0 if not again.is_set() else None, tick)
    assert again.wait(20)
    ticker.stop()
    assert "a bug in one tick" in caplog.text
    assert len(ticks) == 2
