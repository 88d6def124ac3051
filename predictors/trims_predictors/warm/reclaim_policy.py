"""Reclaim policy: which templates and spares are ended when. Pure decisions, no clock, no process.

A template without use for `keep_alive_s` goes with its spares. If all templates and spares together hold more than
`most_bytes`, one thing goes at a time, and what is left is counted again: first a hot spare, which has loaded a model
ahead of need, then a spare, then a template that has no predictors, then one that has some. In each group it is the one
whose environment was used least recently. A template that has predictors stays as long as they do, because it alone
learns how they end. One that a request waits for stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the memory and the time of templates.

    Attributes:
        keep_alive_s: Seconds that a template stays after its last use; None: until its memory is needed.
        most_bytes: Bound of all templates and spares together; None for no bound.
    """

    keep_alive_s: float | None = None
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """One environment's template and spares.

    Attributes:
        nbytes: Bytes of the template; 0 if it has ended.
        used_s: When a predictor was asked for, or ended, last.
        predictors: Processes forked from it that live, without spares and hot spares.
        waited_for: Whether a request, or a spare in the making, waits for it now.
        kept: Whether it is to stay without use.
        leaving: Whether it is to go with its last predictor.
    """

    environment: Hashable
    nbytes: int = 0
    spare_bytes: tuple[int, ...] = ()
    hot_bytes: tuple[int, ...] = ()
    used_s: float = 0.0
    predictors: int = 0
    waited_for: bool = False
    kept: bool = False
    leaving: bool = False

    @property
    def all_bytes(self) -> int:
        """Return the bytes of the template and its spares."""
        return self.nbytes + sum(self.spare_bytes) + sum(self.hot_bytes)


class Way(Enum):
    """Ways to free memory, in words."""

    END_HOT_SPARE = "a hot spare ends"
    END_SPARE = "a spare ends"
    END = "a template ends"
    LEAVE = "a template ends with its last predictor"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to end, of one environment; after `LEAVE` a request may need the template before it ends."""

    way: Way
    environment: Hashable
    why: str


_OVER, _UNUSED = "memory is needed (--template-memory)", "it was not used (--template-keep-alive-s)"


def next_step(usages: Sequence[Usage], limits: Limits, now_s: float, other_bytes: int = 0) -> Step | None:
    """Return the first step to take; None if no limit is exceeded.

    Args:
        limits: What they may cost.
        now_s: Moment on the clock of `used_s`.
        other_bytes: Bytes of templates that serve no more, or not yet: they count, but cannot be ended.
    """
    for each in usages:
        idle = not each.predictors and not each.waited_for
        if idle and each.leaving:
            return Step(Way.END, each.environment, _OVER)
        if idle and _ends_s(each, limits) <= now_s:
            return Step(Way.END, each.environment, _UNUSED)
    if limits.most_bytes is None or other_bytes + sum(each.all_bytes for each in usages) <= limits.most_bytes:
        return None
    return _make_room(sorted(usages, key=lambda each: each.used_s))


def next_end_s(usages: Sequence[Usage], limits: Limits) -> float | None:
    """Return the moment at which the next template is without use for too long, if nothing happens; None if never."""
    ends = [_ends_s(each, limits) for each in usages if not each.predictors and not each.waited_for]
    return min((each for each in ends if each != float("inf")), default=None)


def _ends_s(usage: Usage, limits: Limits) -> float:
    if usage.kept or limits.keep_alive_s is None:
        return float("inf")
    return usage.used_s + limits.keep_alive_s


def _make_room(oldest_first: Sequence[Usage]) -> Step | None:
    for each in oldest_first:
        if each.hot_bytes:
            return Step(Way.END_HOT_SPARE, each.environment, _OVER)
    for each in oldest_first:
        if each.spare_bytes:
            return Step(Way.END_SPARE, each.environment, _OVER)
    free = [each for each in oldest_first if not each.waited_for and not each.leaving and each.nbytes]
    for each in free:
        if not each.predictors:
            return Step(Way.END, each.environment, _OVER)
    return Step(Way.LEAVE, free[0].environment, _OVER) if free else None
