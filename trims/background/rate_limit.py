"""The bandwidth of work behind readers: hashing and copying that no request waits for.

All such work shares one bandwidth, and its bytes are read and written by processes of the lowest priority (`copier`),
so that opens, and the programs that run models, have the processors and the memory bus to themselves. As soon as a
request waits for a piece of work, ordinary workers do it, as fast as they can.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from trims.background.copiers import Copiers

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.background.task import Order

#: Seconds between two looks, during a pause, whether a request waits.
_LOOK_S = 0.02


class RateLimiter:
    """The bandwidth, shared by all work behind readers.

    Args:
        bytes_per_s: The most bytes per second; None for no limit.
        sleep: Waits for as many seconds.
        copiers: Processes that do the work; None for some of its own.
    """

    def __init__(
        self,
        bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        copiers: Copiers | None = None,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.copiers = copiers or Copiers()
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def keep(self, nbytes: int, is_awaited: Callable[[], bool], took_s: float = 0.0) -> None:
        """Wait, after bytes were moved, as long as they take at the bandwidth, behind those of all other work.

        Args:
            is_awaited: Whether a request waits for the work; ends the pause.
            took_s: Seconds that moving them took, which count.
        """
        if self.bytes_per_s is None or is_awaited():
            return
        with self._lock:
            began_s = max(self._free_at_s, self._clock() - took_s)
            self._free_at_s = until_s = began_s + nbytes / self.bytes_per_s
        while (left_s := until_s - self._clock()) > 0:
            if is_awaited():
                with self._lock:  # time that is not waited for is time for other work
                    self._free_at_s -= left_s
                return
            self._sleep(min(left_s, _LOOK_S))


class Behind:
    """One piece of work behind readers.

    Args:
        is_awaited: Whether a request has come to wait for it.
    """

    def __init__(self, pace: RateLimiter, is_awaited: Callable[[], bool]) -> None:
        self._pace = pace
        self._is_awaited = is_awaited
        self._done_bytes = 0

    def carry(self, order: Order, on_progress: Callable[[int], None] | None = None) -> dict[str, str] | None:
        """Have a copier do a task at the bandwidth. Return the digests by name. Blocks.

        Args:
            on_progress: Called with the bytes done so far; an exception from it ends the task.

        Returns:
            None when a request starts waiting: nothing is written any more, and the task is to be done again.

        Raises:
            SourceFailedError: A file ended early or cannot be read.
            OSError: The target cannot be written.
        """
        done = 0

        pace = self._pace

        def moved(nbytes: int, took_s: float) -> None:
            nonlocal done
            done += nbytes
            if on_progress is not None:
                on_progress(done)
            pace.keep(nbytes, self._is_awaited, took_s)

        return pace.copiers.carry(order, bytes_per_s=pace.bytes_per_s, moved=moved, is_awaited=self._is_awaited)

    def moved(self, nbytes: int) -> None:
        """Wait after another `nbytes` were moved, until it is time for the next."""
        self._pace.keep(nbytes, self._is_awaited)

    def done(self, done_bytes: int) -> None:
        """Wait after a report of all bytes done so far, until it is time for the next. See `moved`."""
        before, self._done_bytes = self._done_bytes, max(self._done_bytes, done_bytes)
        self.moved(self._done_bytes - before)
