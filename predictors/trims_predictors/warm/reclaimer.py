"""Counts the memory of templates and spares, and has those ended that `reclaim_policy` chooses.

The reclaimer looks when something has changed and requests are not being answered, at most once in `_PAUSE_S`, and when
a template has been without use for long enough. Counting runs in a thread.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from trims_predictors.warm.memory_usage import footprint
from trims_predictors.warm.reclaim_policy import next_end_s, next_step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trims_predictors.warm.inventory import Inventory
    from trims_predictors.warm.memory_usage import Footprint
    from trims_predictors.warm.reclaim_policy import Limits, Step

#: Seconds between two counts: each takes milliseconds, during which a template that is counted cannot be forked.
_PAUSE_S = 1.0


class Reclaimer:
    """Keeps the templates and spares of a warm pool within limits for as long as `run` runs.

    Args:
        inventory: What there is.
        limits: What that may cost.
        calm: Waits until no request is being answered, but not for ever.
        carry_out: Ends something.

    Attributes:
        counted: Process -> its memory when it was counted last.
        total_bytes: Bytes of all templates and spares then.
    """

    def __init__(
        self,
        inventory: Inventory,
        limits: Limits,
        calm: Callable[[], Awaitable[None]],
        carry_out: Callable[[Step], Awaitable[None]],
    ) -> None:
        self._inventory = inventory
        self._calm = calm
        self._carry_out = carry_out
        self.limits = limits
        self._woken = asyncio.Event()
        self.counted: Mapping[int, Footprint] = {}
        self.total_bytes = 0

    def wake(self) -> None:
        """Something has changed: count again soon."""
        self._woken.set()

    async def run(self) -> None:
        """Reclaim again and again until the task is cancelled."""
        while True:
            await self._wait()
            await self._calm()
            self._woken.clear()
            while (step := await self._look()) is not None:
                await self._carry_out(step)
            await asyncio.sleep(_PAUSE_S)

    async def _wait(self) -> None:
        """Wait until something has changed, or a template's time is over."""
        usages, _ = self._inventory.usages(self.counted)
        end_s = next_end_s(usages, self.limits)
        if end_s is None:
            await self._woken.wait()
            return
        # Not `wait_for`: before Python 3.12 it loses a cancellation that comes with the event, and the pool never ends.
        timer = asyncio.get_running_loop().call_later(max(0.0, end_s - time.monotonic()), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    async def _look(self) -> Step | None:
        """Count, and decide by what is the case afterwards."""
        pids = self._inventory.pids()
        self.counted = await asyncio.to_thread(_count, pids)
        usages, other_bytes = self._inventory.usages(self.counted)
        self.total_bytes = other_bytes + sum(each.all_bytes for each in usages)
        return next_step(usages, self.limits, time.monotonic(), other_bytes)


def _count(pids: Sequence[int]) -> dict[int, Footprint]:
    found = {pid: footprint(pid) for pid in pids}
    return {pid: each for pid, each in found.items() if each is not None}
