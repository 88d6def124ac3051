"""Eviction policies: they choose, the store acts.

A policy sees `Usage` records of what may be evicted and puts them in order, first to go first. It is told of every
use and of every eviction, and keeps no other books. One instance serves one place. Third parties add policies with the
entry-point group `trims.policies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Usage:
    """What a policy may know of a replica.

    Attributes:
        key: Image key.
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
    """Chooses victims for one place."""

    name: ClassVar[str]

    def used(self, usage: Usage) -> None:
        """The replica was filled or granted; `usage` already counts it."""
        ...

    def gone(self, key: str, *, evicted: bool) -> None:
        """The replica has left the place; `evicted` if this policy's order chose it."""
        ...

    def order(self, candidates: Sequence[Usage]) -> list[str]:
        """Keys of all candidates, first to go first. Deterministic for equal input."""
        ...


class _Stateless:
    """What policies that sort by the usage record alone have in common."""

    def used(self, usage: Usage) -> None:
        """Nothing to keep."""

    def gone(self, key: str, *, evicted: bool) -> None:
        """Nothing to forget."""


class LeastRecentlyUsed(_Stateless):
    """Evict what was not used for longest."""

    name: ClassVar[str] = "lru"

    def order(self, candidates: Sequence[Usage]) -> list[str]:
        """By time of last use."""
        return [usage.key for usage in sorted(candidates, key=lambda usage: (usage.last_used_s, usage.key))]


class LeastFrequentlyUsed(_Stateless):
    """Evict what was opened least often; TrIMS calls it LCU, least commonly used (CLOUD 2019)."""

    name: ClassVar[str] = "lfu"

    def order(self, candidates: Sequence[Usage]) -> list[str]:
        """By number of opens, then by time of last use."""
        ranked = sorted(candidates, key=lambda usage: (usage.uses, usage.last_used_s, usage.key))
        return [usage.key for usage in ranked]


class FirstInFirstOut(_Stateless):
    """Evict what has been there for longest."""

    name: ClassVar[str] = "fifo"

    def order(self, candidates: Sequence[Usage]) -> list[str]:
        """By time of sealing."""
        return [usage.key for usage in sorted(candidates, key=lambda usage: (usage.filled_at_s, usage.key))]


class GreedyDualSizeFrequency:
    """Evict what is cheapest to lose: GDSF, Cherkasova 1998 (HP Labs Technical Report HPL-98-69R1).

    Priority = inflation + uses x reload seconds / bytes. Inflation rises to the priority of whatever is
    evicted, so that what was valuable long ago ages out.
    """

    name: ClassVar[str] = "gdsf"

    def __init__(self) -> None:
        self._inflation = 0.0
        self._priorities: dict[str, float] = {}

    def used(self, usage: Usage) -> None:
        """Renew the priority at today's inflation."""
        self._priorities[usage.key] = self._inflation + _value(usage)

    def gone(self, key: str, *, evicted: bool) -> None:
        """Drop the record; an eviction raises the inflation."""
        priority = self._priorities.pop(key, self._inflation)
        if evicted:
            self._inflation = max(self._inflation, priority)

    def order(self, candidates: Sequence[Usage]) -> list[str]:
        """By priority, then by time of last use."""

        def rank(usage: Usage) -> tuple[float, float, str]:
            priority = self._priorities.get(usage.key, self._inflation + _value(usage))
            return (priority, usage.last_used_s, usage.key)

        return [usage.key for usage in sorted(candidates, key=rank)]


def _value(usage: Usage) -> float:
    """Seconds saved per byte held."""
    return max(usage.uses, 1) * max(usage.cost_s, 1e-6) / max(usage.nbytes, 1)
