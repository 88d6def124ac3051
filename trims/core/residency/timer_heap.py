"""Due times: what happens at which clock time, earliest first, O(log n) for each step."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Item = TypeVar("_Item")
#: Entries tolerated before the first look for dead ones.
_FIRST_PRUNE = 256


class TimerHeap(Generic[_Item]):
    """A heap of (clock time, item). An entry is dead when its item was answered, left or moved meanwhile.

    Args:
        is_live: Whether an entry still counts: called with its time and item.
    """

    def __init__(self, is_live: Callable[[float, _Item], bool]) -> None:
        self._is_live = is_live
        self._heap: list[tuple[float, int, _Item]] = []
        self._numbers = itertools.count()
        self._prune_at = _FIRST_PRUNE

    def add(self, at_s: float, item: _Item) -> None:
        """Something is due at a time."""
        heapq.heappush(self._heap, (at_s, next(self._numbers), item))
        if len(self._heap) > self._prune_at:
            self._heap = [entry for entry in self._heap if self._is_live(entry[0], entry[2])]
            heapq.heapify(self._heap)
            # Prune again only after the heap doubles, so pruning is amortised O(1).
            self._prune_at = max(_FIRST_PRUNE, 2 * len(self._heap))

    def next_s(self) -> float | None:
        """Return the earliest time at which something live is due, or None."""
        while self._heap:
            at_s, _, item = self._heap[0]
            if self._is_live(at_s, item):
                return at_s
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_s: float) -> _Item | None:
        """Take out one live item whose time has come, earliest first; None if there is none."""
        due_s = self.next_s()
        if due_s is None or due_s > now_s:
            return None
        return heapq.heappop(self._heap)[2]
