"""Keeping time for a store: wakes when a deadline or keep-alive is due, and at least once a second."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)
_LONGEST_S = 1.0


class Ticker:
    """A thread that calls `tick` when something is due."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._until_s = 0.0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, next_due_s: Callable[[], float | None], tick: Callable[[float], None]) -> None:
        """Begin to keep time.

        Args:
            next_due_s: Gives the monotonic time at which something is due next, or None. Called often: must be quick.
            tick: Called with the time, when it is.
        """
        self._next_due_s, self._tick = next_due_s, tick
        self._thread = threading.Thread(target=self._run, name="trims-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End. Idempotent, also before `start`."""
        with self._told:
            self._stopping = True
            self._told.notify()
        if self._thread is not None:
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
            # No due time is lost, because both sides keep an order. This thread: 1. set the longest sleep; 2. look at
            # what is due; 3. sleep until the earlier of what it saw and what callers set. Another thread: 1. write the
            # books; 2. call `look_again`. If that call comes before step 1 here, step 2 here sees the books. If it
            # comes later, it lowers the end of the sleep, and only the next round raises that again.
            with self._told:
                self._until_s = time.monotonic() + _LONGEST_S
            due, now = self._next_due_s(), time.monotonic()
            if due is None or due > now:
                self._sleep(due)
            elif not self._ticked(now):
                self._sleep(now + _LONGEST_S)  # what failed is due still: try again, but not without a pause

    def _ticked(self, now: float) -> bool:
        """Time must be kept whatever one tick meets: without it no deadline is ever over."""
        try:
            self._tick(now)
        except Exception:
            log.exception("a tick failed")
            return False
        return True

    def _sleep(self, due: float | None) -> None:
        with self._told:
            if due is not None:
                self._until_s = min(self._until_s, due)
            while not self._stopping and (left_s := self._until_s - time.monotonic()) > 0:
                self._told.wait(left_s)
