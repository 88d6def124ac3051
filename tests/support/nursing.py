"""A warm pool for a test."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from trims_predictors.children.launcher import Environment, Launcher
from trims_predictors.warm.warm_pool import WarmPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from trims_predictors.warm.reclaim_policy import Limits

NUMPY = Environment("numpy")
OTHER = Environment("numpy", sys.executable)


def nurse(
    folder: Path,
    work: Callable[[WarmPool], Awaitable[Any]],
    spares: int = 0,
    limits: Limits | None = None,
    learned: Path | None = None,
) -> Any:
    async def run() -> Any:
        launcher = Launcher(str(folder))
        warm_pool = WarmPool(launcher, spares=spares, threads=1, busy=lambda: False, limits=limits, learned=learned)
        try:
            return await asyncio.wait_for(work(warm_pool), 120)
        finally:
            await warm_pool.close()
            launcher.close()

    return asyncio.run(run())


async def until(holds: Callable[[], object]) -> None:
    """Wait until it holds, at most as long as any piece of work may take."""
    until_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until_s, "it did not come to hold"
        await asyncio.sleep(0.005)
