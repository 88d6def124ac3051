"""Counts the memory of templates and spares, and has those ended that `turnover` chooses.

It looks when something has changed and requests are not being answered, at most once in `_PAUSE_S`, and when a template
has been without use for long enough. Counting runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Protocol

from trims_predictors.warm.memory_usage import footprint
from trims_predictors.warm.reclaim_policy import next_end_s, next_step

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trims_predictors.warm.memory_usage import Footprint
    from trims_predictors.warm.reclaim_policy import Limits, Standing, Step

#: Between two counts: each takes milliseconds, during which a template that is counted cannot be forked.
_PAUSE_S = 1.0


class Household(Protocol):
    """What is looked after: the nursery."""

    def pids(self) -> Collection[int]:
        """Processes of all templates and spares that live."""
        ...

    def standings(self, counted: Mapping[int, Footprint]) -> tuple[Sequence[Standing], int]:
        """Each environment's state now, and the bytes of templates that cannot be ended."""
        ...

    async def calm(self) -> None:
        """Wait until no request is being answered, but not for ever."""
        ...

    async def carry_out(self, step: Step) -> None:
        """End something."""
        ...


class Upkeep:
    """Looks after a nursery's templates for as long as `run` runs.

    Args:
        household: Whose.
        limits: What they may cost.

    Attributes:
        counted: Process -> its memory when it was counted last.
        total_bytes: Of all templates and spares then.
    """

    def __init__(self, household: Household, limits: Limits) -> None:
        self._household = household
        self.limits = limits
        self._stirred = asyncio.Event()
        self.counted: Mapping[int, Footprint] = {}
        self.total_bytes = 0

    def stir(self) -> None:
        """Something has changed: count again soon."""
        self._stirred.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wait()
            await self._household.calm()
            self._stirred.clear()
            while (step := await self._look()) is not None:
                await self._household.carry_out(step)
            await asyncio.sleep(_PAUSE_S)

    async def _wait(self) -> None:
        """Until something has changed, or a template's time is over."""
        standings, _ = self._household.standings(self.counted)
        end_s = next_end_s(standings, self.limits)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stirred.wait(), None if end_s is None else max(0.0, end_s - time.monotonic()))

    async def _look(self) -> Step | None:
        """Count, and decide by what is the case afterwards."""
        pids = list(self._household.pids())
        self.counted = await asyncio.to_thread(_count, pids)
        standings, other_bytes = self._household.standings(self.counted)
        self.total_bytes = other_bytes + sum(each.all_bytes for each in standings)
        return next_step(standings, self.limits, time.monotonic(), other_bytes)


def _count(pids: Sequence[int]) -> dict[int, Footprint]:
    found = {pid: footprint(pid) for pid in pids}
    return {pid: each for pid, each in found.items() if each is not None}
