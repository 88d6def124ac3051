"""Limits that all transfers of a process share: bandwidth and connections."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds of the bandwidth that may be taken at once: a piece is never cut for it.
_BURST_S = 0.25


class Bandwidth:
    """A rate that is shared.

    Args:
        bytes_per_s: The most; None for no limit.
    """

    def __init__(self, bytes_per_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def pause_s(self, nbytes: int) -> float:
        """Return the seconds to wait after these bytes have come."""
        if self.bytes_per_s is None:
            return 0.0
        with self._lock:
            now_s = self._clock()
            self._free_at_s = max(self._free_at_s, now_s - _BURST_S) + nbytes / self.bytes_per_s
            return max(0.0, self._free_at_s - now_s)


class Limits:
    """Limits of all transfers of one process together.

    Args:
        connections: Most connections at once, over all transfers.
        each: Most connections of one transfer.
        bytes_per_s: Most bytes a second; None for no limit.
        patience_s: Seconds without a byte after which a transfer gives up; what has come is kept.
    """

    def __init__(
        self, connections: int = 8, each: int = 4, bytes_per_s: float | None = None, patience_s: float = 120.0
    ) -> None:
        self.slots = threading.BoundedSemaphore(connections)
        self.each = min(each, connections)
        self.bandwidth = Bandwidth(bytes_per_s)
        self.patience_s = patience_s
