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
        self._sooner = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="trims-ticker", daemon=True)

    def start(self) -> None:
        """Begin to keep time."""
        self._thread.start()

    def stop(self) -> None:
        """End. Idempotent, also before `start`."""
        self._stopping = True
        self._sooner.set()
        if self._thread.is_alive():
            self._thread.join()

    def look_again(self) -> None:
        """Something may be due sooner than was thought."""
        self._sooner.set()

    def _run(self) -> None:
        while not self._stopping:
            # Cleared before looking: what is added while we look sets it again.
            self._sooner.clear()
            due, now = self._next_due_s(), time.monotonic()
            if due is not None and due <= now:
                self._tick(now)
            else:
                self._sooner.wait(_LONGEST_S if due is None else min(_LONGEST_S, due - now))
