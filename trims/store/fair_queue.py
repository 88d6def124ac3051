"""A queue in which tenants take turns: one with a hundred pieces of work delays another by one piece at most."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Queue of waiting items: each tenant's in the order of arrival, the tenants in turn. Every step costs O(1)."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str | None, deque[Item]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, item: Item, tenant: str | None = None) -> None:
        """Put an item behind the others of its tenant; None stands for the daemon's own user."""
        self._waiting.setdefault(tenant, deque()).append(item)
        self._length += 1

    def pop(self) -> Item:
        """Take the oldest item of the tenant whose turn it is. Raises LookupError if there is none."""
        if not self._waiting:
            raise LookupError("nothing waits")
        tenant, mine = self._waiting.popitem(last=False)
        item = mine.popleft()
        if mine:
            self._waiting[tenant] = mine  # at the end: the others come first
        self._length -= 1
        return item

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()
        self._length = 0
