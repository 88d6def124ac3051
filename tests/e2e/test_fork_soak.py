"""A few hundred forks from one template leave everything as it was; `make fork-soak` makes 100,000."""

# fault (templates): thousands of forks from one template -> no more memory, descriptors or threads than before

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest
from fleets import register
from fork_soak import GROWTH_BYTES, Held, Look, Soak, deployment_of, grown
from looking import rested
from trims_predictors.children.launcher import Launcher
from trims_predictors.warm.warm_pool import WarmPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon


@pytest.mark.soak
def test_hundreds_of_forks_from_one_template_leave_nothing(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, lambda *given: rested(checkpoint(*given)), "soak")

    async def run() -> None:
        launcher = Launcher(str(daemon.config.runtime_dir))
        warm_pool = WarmPool(launcher, spares=0, threads=2, busy=lambda: False)
        soak = Soak(warm_pool, deployment_of("numpy", "soak"))
        try:
            await soak.run(100)
            before = await soak.look()
            await soak.run(200)
            assert grown(before, await soak.look()) == []
            assert soak.forks == 300
        finally:
            await warm_pool.close()
            launcher.close()

    asyncio.run(run())


def test_whatever_a_fork_leaves_is_named() -> None:
    held = Held(descriptors=6, threads=1, children=0, memory_bytes=1 << 20)
    before = Look(held, held, {"statuses": 0})
    assert grown(before, before) == []
    more = Held(descriptors=7, threads=2, children=1, memory_bytes=(1 << 20) + GROWTH_BYTES + 1)
    assert grown(before, dataclasses.replace(before, template=more)) == [
        "descriptors of the template: 7 were 6",
        "threads of the template: 2 were 1",
        "children of the template: 1 were 0",
        "memory of the template: 5242881 bytes were 1048576",
    ]
    assert len(grown(before, dataclasses.replace(before, endpoint=more))) == 4
    assert grown(before, dataclasses.replace(before, records={"statuses": 1})) == ["statuses: 1 were 0"]
