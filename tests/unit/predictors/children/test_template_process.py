"""A template forks on demand, and whatever waits for it is notified when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nursing import until
from trims_predictors.children import template_process
from trims_predictors.children.launcher import Environment, Launcher
from trims_predictors.children.template_process import Template

from trims.core.errors import LostPeerError
from trims.process.scheduling_class import BACKGROUND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NUMPY = Environment("numpy")


def drive(folder: Path, work: Callable[[Template], Awaitable[Any]], *modules: str, gives_way: bool = False) -> Any:
    async def run() -> Any:
        launcher = Launcher(str(folder))
        template = Template(launcher, NUMPY, ["numpy", *modules], gives_way=gives_way)
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
        assert (await predictor.ended).startswith("it was ended by SIGKILL")

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


# fault (templates): a template is replaced while a fork is waited for -> nothing; it stays until that has ended
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


def niceness_of_session(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel does not group by session")
@pytest.mark.parametrize(("gives_way", "at_most_s"), [(False, 60.0), (True, 60.0), (True, 0.3)])
def test_a_template_that_no_request_waits_for_gives_way_for_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gives_way: bool, at_most_s: float
) -> None:
    weighed, really = [], template_process.weigh

    def weigh(pid: int, niceness: int) -> None:
        really(pid, niceness)
        weighed.append(niceness)

    monkeypatch.setattr(template_process, "weigh", weigh)
    monkeypatch.setattr(template_process, "_GIVES_WAY_S", at_most_s)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    (folder / "asks.py").write_text(
        "import pathlib, time; here = pathlib.Path(__file__).parent; (here / 'imports').touch()\n"
        "while not (here / 'go').exists(): time.sleep(0.01)\n"
    )
    ours = Path("/proc/self/autogroup").read_text()  # nothing, where the session is the machine's first

    async def work(template: Template) -> None:
        await until((folder / "imports").exists)
        if at_most_s < 1:  # perhaps over before the import begins
            await until(lambda: BACKGROUND in weighed and niceness_of_session(template.pid) == 0)
        else:
            await until(lambda: niceness_of_session(template.pid) == (BACKGROUND if gives_way else 0))
        (folder / "go").touch()
        await template.ready
        await until(lambda: niceness_of_session(template.pid) == 0)
        predictor = await template.fork()
        assert niceness_of_session(predictor.pid) == 0
        assert Path("/proc/self/autogroup").read_text() == ours

    drive(folder, work, "asks", gives_way=gives_way)


def test_what_the_kernel_puts_off_is_told_to_it_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    answers = iter([BlockingIOError(11, "Resource temporarily unavailable"), None, PermissionError(1, "no"), None])

    def weigh(pid: int, niceness: int) -> None:
        told.append(niceness)
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr(template_process, "weigh", weigh)

    async def work(template: Template) -> None:
        await template.ready
        await until(lambda: len(told) >= 3)

    drive(folder, work, gives_way=True)
    assert told[0] == BACKGROUND
    assert told[-1] == 0


@pytest.mark.parametrize("stated", [None, "7"])
def test_threads_that_wait_soon_sleep_unless_told_otherwise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stated: str | None
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if stated is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", stated)

    async def work(template: Template) -> None:
        await template.ready
        variables = Path(f"/proc/{template.pid}/environ").read_text().split("\0")
        assert f"GOMP_SPINCOUNT={stated or '10000'}" in variables

    drive(folder, work)
