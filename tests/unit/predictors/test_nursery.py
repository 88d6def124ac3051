"""Templates learn, are replaced when they are spoilt, and a predictor comes from somewhere in any case."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors import templates
from trims_predictors.launching import Environment, Launcher
from trims_predictors.nursery import Nursery

from trims.core.errors import DrainingError, PredictorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

NUMPY = Environment("numpy")


def nurse(folder: Path, work: Callable[[Nursery], Awaitable[Any]], spares: int = 0) -> Any:
    async def run() -> Any:
        launcher = Launcher(str(folder))
        nursery = Nursery(launcher, spares=spares, threads=1, busy=lambda: False)
        try:
            return await asyncio.wait_for(work(nursery), 120)
        finally:
            await nursery.close()
            launcher.close()

    return asyncio.run(run())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


@pytest.fixture
def modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that templates import from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    (folder / "spoils.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    (folder / "harmless.py").write_text("x = 1")
    (folder / "hangs.py").write_text("import time; time.sleep(600)")
    (folder / "exits.py").write_text("import os; os._exit(3)")
    return folder


def test_what_a_predictor_imported_is_known_to_the_next_template(modules: Path) -> None:
    async def work(nursery: Nursery) -> None:
        predictor = await nursery.take(NUMPY)
        before = nursery._templates[NUMPY]
        nursery.teach(NUMPY, ["harmless", "no_such_module", "__main__"])
        await until(lambda: nursery._learned.get(NUMPY))
        assert nursery._learned[NUMPY] == ["harmless"]
        assert "harmless" in nursery._templates[NUMPY].modules
        assert nursery._templates[NUMPY] is not before
        nursery.teach(NUMPY, ["harmless", "no_such_module"])
        assert nursery._lessons[NUMPY] == 1, "nothing new is no lesson"
        assert before.lost is None, "it learns how its predictor ends"
        assert await predictor.end() == "it exited with status 0"
        await until(lambda: before.lost)

    nurse(modules, work)


@pytest.mark.parametrize("module", ["spoils", "hangs", "exits"])
def test_a_lesson_that_spoils_a_template_costs_the_one_that_serves_nothing(
    modules: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(templates, "_IMPORT_S", 10.0)

    async def work(nursery: Nursery) -> None:
        await (await nursery.take(NUMPY)).end()
        before = nursery._templates[NUMPY]
        monkeypatch.setattr(templates, "_IMPORT_S", 1.0)
        nursery.teach(NUMPY, [module])
        predictor = await nursery.take(NUMPY)
        assert predictor.how == "forked", "meanwhile"
        await predictor.end()
        await until(lambda: nursery._banned.get(NUMPY))
        assert nursery._templates[NUMPY] is before
        nursery.teach(NUMPY, [module])
        assert nursery._lessons[NUMPY] == 1

    nurse(modules, work)
    assert f"cannot learn this; its predictors will import it themselves: {module}" in caplog.text


def test_more_modules_than_a_message_holds_are_learned(modules: Path) -> None:
    for number in range(700):
        (modules / f"{'long' * 40}_{number}.py").touch()
    names = [f"{'long' * 40}_{number}" for number in range(700)]

    async def work(nursery: Nursery) -> None:
        await (await nursery.take(NUMPY)).end()
        nursery.teach(NUMPY, names)
        await until(lambda: nursery._learned.get(NUMPY))
        assert nursery._learned[NUMPY] == names
        nursery._templates[NUMPY].close()
        predictor = await nursery.take(NUMPY)
        assert predictor.how == "forked"
        await predictor.end()

    nurse(modules, work)


def test_a_predictor_is_spawned_where_its_template_may_not_be_forked(
    modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(nursery: Nursery) -> None:
        nursery._learned[NUMPY] = ["spoils"]
        predictor = await nursery.take(NUMPY)
        assert predictor.how == "spawned"
        assert await predictor.end() == "it exited with status 0"

    nurse(modules, work)
    assert "is spawned, not forked: the template cannot be forked: it has 2 threads" in caplog.text


def test_an_environment_that_cannot_be_started_is_told(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        with pytest.raises(PredictorError, match=r"/no/python cannot be started"):
            await nursery.take(Environment("numpy", "/no/python"))
        predictor = await nursery.take(Environment("numpy", "/bin/false"))
        with pytest.raises(PredictorError, match="exited with status 1"):
            await predictor.ask({"op": "prepare", "modules": [], "threads": 1}, deadline_s=30)

    nurse(folder, work)


def test_an_environment_of_another_interpreter_has_our_packages_and_its_own(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        predictor = await nursery.take(Environment("numpy", sys.executable))
        assert predictor.how == "forked"
        await predictor.end()

    nurse(folder, work)


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30, 100])
def test_a_nursery_that_closes_while_predictors_begin_leaves_none(folder: Path, turns: int) -> None:
    async def work(nursery: Nursery) -> None:
        nursery.tend(NUMPY)
        takes = [asyncio.ensure_future(nursery.take(NUMPY)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0.01)
        await nursery.close()
        for taken in await asyncio.gather(*takes, return_exceptions=True):
            assert isinstance(taken, DrainingError) or taken.ended.done()
        with pytest.raises(DrainingError, match="starts no predictors"):
            await nursery.take(NUMPY)

    nurse(folder, work, spares=2)


def test_a_predictor_that_stays_after_its_kill_keeps_no_descriptor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trims_predictors.nursery._BURIAL_S", 0.05)

    async def work(nursery: Nursery) -> int:
        predictor = await nursery.take(NUMPY)
        monkeypatch.setattr("signal.pidfd_send_signal", lambda *_: None)
        await nursery.close()
        assert await predictor.ended == "it stays, though it was killed"
        return predictor.pid

    pid = nurse(folder, work)
    assert f"predictor process {pid} has not ended 0.05 s after SIGKILL" in caplog.text


def test_templates_are_counted_when_they_start_and_when_they_have_ended(folder: Path) -> None:
    async def work(nursery: Nursery) -> None:
        assert nursery.templates() == {}
        await (await nursery.take(NUMPY)).end()
        assert nursery.templates() == {"numpy": {"started": 1, "ended": 0}}
        nursery._templates[NUMPY].close("the test ends it")
        assert nursery.templates() == {"numpy": {"started": 1, "ended": 1}}
        await (await nursery.take(NUMPY)).end()
        assert nursery.templates() == {"numpy": {"started": 2, "ended": 1}}

    nurse(folder, work)
