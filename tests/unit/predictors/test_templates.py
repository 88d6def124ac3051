"""A template forks on demand, and whatever waits for it is told when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.launching import Environment, Launcher
from trims_predictors.templates import Template

from trims.core.errors import LostPeerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

NUMPY = Environment("numpy")


def drive(folder: Path, work: Callable[[Template], Awaitable[Any]], *modules: str) -> Any:
    async def run() -> Any:
        launcher = Launcher(str(folder))
        template = Template(launcher, NUMPY, ["numpy", *modules])
        try:
            return await asyncio.wait_for(work(template), 60)
        finally:
            template.close()
            launcher.close()
            await template.gone

    return asyncio.run(run())


def test_a_template_forks_and_tells_how_its_predictor_ended(folder: Path) -> None:
    async def work(template: Template) -> None:
        predictor = await template.fork()
        os.kill(predictor.pid, signal.SIGKILL)
        assert await predictor.ended == "it was ended by SIGKILL"

    drive(folder, work)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_forks_that_wait_for_a_template_which_ends_are_told_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    (folder / "hangs.py").write_text("import time; time.sleep(600)")

    async def work(template: Template) -> None:
        forks = [asyncio.ensure_future(template.fork()) for _ in range(2)]
        await asyncio.sleep(0.1)
        if end == "closed":
            template.close()
        else:
            os.kill(template.pid, signal.SIGKILL)
        for error in await asyncio.gather(*forks, return_exceptions=True):
            assert isinstance(error, LostPeerError)
            assert "the template is gone" in str(error)

    drive(folder, work, "hangs")


def test_a_predictor_whose_fork_is_not_waited_for_any_more_ends_by_itself(folder: Path) -> None:
    async def work(template: Template) -> None:
        await template.ready
        for turns in range(10):
            fork = asyncio.ensure_future(template.fork())
            for _ in range(turns):
                await asyncio.sleep(0.001)
            fork.cancel()
            (outcome,) = await asyncio.gather(fork, return_exceptions=True)
            if not isinstance(outcome, BaseException):  # it was quicker
                outcome.kill("it is not needed")
                await outcome.ended
        predictor = await template.fork()
        assert await predictor.end() == "it exited with status 0"

    drive(folder, work)


def test_a_template_that_is_retired_while_a_fork_is_waited_for_ends_after_it(folder: Path) -> None:
    async def work(template: Template) -> None:
        fork = asyncio.ensure_future(template.fork())
        await asyncio.sleep(0)
        template.retire()
        predictor = await fork
        assert template.lost is None
        assert await predictor.end() == "it exited with status 0"
        assert template.lost == "it was retired"
        await template.gone

    drive(folder, work)
