"""Keeping time for a store: wakes when a deadline or keep-alive is due, and at least once a second."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_S = 1.0


class Ticker:
    """A thread that calls `tick` when something is due.

    Args:
        next_due_s: Gives the monotonic time at which something is due next, or None. Called often: must be quick.
        tick: Called with the time, when it is.
    """

    def __init__(self, next_due_s: Callable[[], float | None], tick: Callable[[float], None]) -> None:
        self._next_due_s = next_due_s
        self._tick = tick
        self._told = threading.Condition()
        self._until_s = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="trims-ticker", daemon=True)

    def start(self) -> None:
        """Begin to keep time."""
        self._thread.start()

    def stop(self) -> None:
        """End. Idempotent, also before `start`."""
        with self._told:
            self._stopping = True
            self._told.notify()
        if self._thread.is_alive():
            self._thread.join()

    def look_again(self, at_s: float) -> None:
        """Something is due at the monotonic time `at_s`, and `next_due_s` knows of it already.

        Wakes the thread only if it would sleep beyond that.
        """
        with self._told:
            if at_s < self._until_s:
                self._until_s = at_s
                self._told.notify()

    def _run(self) -> None:
        while not self._stopping:
            # Nothing told is lost, because both sides keep an order. Here: the longest sleep is set, then we look, then
            # we sleep until the earlier of what we saw and what we were told. There: first the books, then
            # `look_again`. Who tells before the longest sleep is set has the books ready for this look; who tells after
            # it, while we look or sleep, lowers the moment we sleep until, and nothing but the next round raises it.
            with self._told:
                self._until_s = time.monotonic() + _LONGEST_S
            due, now = self._next_due_s(), time.monotonic()
            if due is not None and due <= now:
                self._tick(now)
            else:
                self._sleep(due)

    def _sleep(self, due: float | None) -> None:
        with self._told:
            if due is not None:
                self._until_s = min(self._until_s, due)
            while not self._stopping and (left_s := self._until_s - time.monotonic()) > 0:
                self._told.wait(left_s)
