"""Eviction policies: a policy keeps the idle replicas of one place in order, the store evicts the first.

A policy is notified when a replica is used, becomes idle (it may be evicted from now on), or is busy again,
and when it leaves. The store asks for one replica at a time, so an eviction costs O(log n) among n idle replicas.
One instance serves one place. Third parties add policies with the entry-point group `trims.policies`; the contract
suite is `trims.testing.policies`.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

#: Stale heap entries that are tolerated beside the live ones, so that rebuilding the heap is amortised O(1).
_SLACK = 64


class Usage(NamedTuple):
    """Facts about a replica that a policy may use.

    Attributes:
        nbytes: Size in bytes, at least 1.
        cost_s: Seconds its last fill took.
        uses: Opens granted so far.
        filled_at_s: Clock time of sealing.
        last_used_s: Clock time of the last grant or close.
    """

    key: str
    nbytes: int
    cost_s: float
    uses: int
    filled_at_s: float
    last_used_s: float


@runtime_checkable
class Policy(Protocol):
    """Orders the idle replicas of one place."""

    name: ClassVar[str]

    def used(self, usage: Usage) -> None:
        """Note that the replica was filled or granted; `usage` already counts it."""
        ...

    def idle(self, usage: Usage) -> None:
        """Note that the replica may be evicted from now on. Called again when its usage changes while it is idle."""
        ...

    def busy(self, key: str) -> None:
        """Note that the replica may not be evicted any more. Idempotent."""
        ...

    def first(self) -> str | None:
        """Key of the idle replica to evict first, None if none is idle. Deterministic; changes nothing."""
        ...

    def gone(self, key: str, *, evicted: bool) -> None:
        """Note that the replica has left the place; `evicted` if it was the first in this policy's order."""
        ...


class RankedPolicy(ABC):
    """A policy whose order is a rank that does not change while a replica is idle: a heap, O(log n) for each step."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[float, ...]] = {}
        self._heap: list[tuple[tuple[float, ...], str]] = []

    @abstractmethod
    def rank(self, usage: Usage) -> tuple[float, ...]:
        """Smallest goes first; ties go by key."""

    def used(self, usage: Usage) -> None:  # noqa: B027 - most policies rank by the usage record alone
        """Do nothing: the usage record says all."""

    def idle(self, usage: Usage) -> None:
        """See `Policy.idle`."""
        rank = self.rank(usage)
        if self._ranks.get(usage.key) != rank:
            self._ranks[usage.key] = rank
            heapq.heappush(self._heap, (rank, usage.key))
            self._compact()

    def busy(self, key: str) -> None:
        """See `Policy.busy`. The heap entry goes when it comes to the top."""
        self._ranks.pop(key, None)

    def first(self) -> str | None:
        """See `Policy.first`."""
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks.get(key) == rank:
                return key
            heapq.heappop(self._heap)
        return None

    def gone(self, key: str, *, evicted: bool) -> None:
        """See `Policy.gone`."""
        del evicted
        self.busy(key)

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._ranks) + _SLACK:
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapq.heapify(self._heap)


class LeastRecentlyUsed(RankedPolicy):
    """Evict what was not used for longest."""

    name: ClassVar[str] = "lru"

    def rank(self, usage: Usage) -> tuple[float, ...]:
        """Return the time of last use."""
        return (usage.last_used_s,)


class LeastFrequentlyUsed(RankedPolicy):
    """Evict what was opened least often; TrIMS calls it LCU, least commonly used (CLOUD 2019)."""

    name: ClassVar[str] = "lfu"

    def rank(self, usage: Usage) -> tuple[float, ...]:
        """Return the number of opens, then the time of last use."""
        return (usage.uses, usage.last_used_s)


class FirstInFirstOut(RankedPolicy):
    """Evict what has been there for longest."""

    name: ClassVar[str] = "fifo"

    def rank(self, usage: Usage) -> tuple[float, ...]:
        """Return the time of sealing."""
        return (usage.filled_at_s,)


class GreedyDualSizeFrequency(RankedPolicy):
    """Evict what is cheapest to lose: GDSF, Cherkasova 1998 (HP Labs Technical Report HPL-98-69R1).

    Priority = inflation + uses x reload seconds / bytes. Inflation rises to the priority of each evicted replica, so
    that what was valuable long ago ages out.
    """

    name: ClassVar[str] = "gdsf"

    def __init__(self) -> None:
        super().__init__()
        self._inflation = 0.0
        self._priorities: dict[str, float] = {}

    def rank(self, usage: Usage) -> tuple[float, ...]:
        """Return the priority, then the time of last use."""
        priority = self._priorities.get(usage.key, self._inflation + _value(usage))
        return (priority, usage.last_used_s)

    def used(self, usage: Usage) -> None:
        """Renew the priority at today's inflation."""
        self._priorities[usage.key] = self._inflation + _value(usage)

    def gone(self, key: str, *, evicted: bool) -> None:
        """Drop the record; an eviction raises the inflation."""
        priority = self._priorities.pop(key, self._inflation)
        if evicted:
            self._inflation = max(self._inflation, priority)
        super().gone(key, evicted=evicted)


def _value(usage: Usage) -> float:
    """Return the seconds saved per byte held."""
    return max(usage.uses, 1) * max(usage.cost_s, 1e-6) / max(usage.nbytes, 1)
