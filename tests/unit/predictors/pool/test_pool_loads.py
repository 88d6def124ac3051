"""Orders to load, and failures to load, with real daemons, templates and predictors: what is remembered, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from fleets import Driver, drive, register
from nursing import until

from trims.core.errors import (
    BusyError,
    CallerError,
    CapacityError,
    DeadlineError,
    DrainingError,
    NotSupportedError,
    PredictorError,
    TrimsError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_predictors.children.launcher import Environment
    from trims_predictors.children.worker_process import PredictorProcess

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")


class Switch:
    """A model whose predictors load as this says; see `own_predictors.Switched`."""

    def __init__(self, daemon: Daemon, checkpoint: Callable[..., Path], path: Path, **predictor: Any) -> None:
        self._path = path
        self.say("load")
        call = {"call": "own_predictors:Switched", "options": {"switch": str(path)}}
        register(daemon, checkpoint, predictor={**call, **predictor})

    def say(self, what: str) -> None:
        """Have predictors do this from now on."""
        other = self._path.with_suffix(".new")
        other.write_text(what)
        other.replace(self._path)


@pytest.fixture
def switch(daemon: Daemon, checkpoint: Callable[..., Path], folder: Path) -> Switch:
    return Switch(daemon, checkpoint, folder / "switch")


async def reason(driver: Driver) -> str:
    return driver.pool.failures.reason(await driver.deployment())


async def until_starting(driver: Driver, count: int = 1) -> None:
    while driver.pool.state((await driver.deployment()).key)["starting"] != count or not driver.pool._running:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("nosuchmodule:f", NotSupportedError, "No module named 'nosuchmodule'"),
        ("own_predictors:NotAPredictor", NotSupportedError, "is no predictor"),
        ("own_predictors:Unloadable", PredictorError, "RuntimeError: not today"),
    ],
)
@pytest.mark.parametrize("way", ["load", "request"])
def test_a_model_that_cannot_run_is_known_by_its_load_and_by_its_request(
    daemon: Daemon, checkpoint: Callable[..., Path], way: str, call: str, error: type[TrimsError], words: str
) -> None:
    register(daemon, checkpoint, predictor={"call": call})

    async def work(driver: Driver) -> None:
        deployment = await driver.deployment()
        with pytest.raises(error, match=words):
            await (driver.pool.load(deployment) if way == "load" else driver.ask(x=[1.0]))
        assert words in await reason(driver)

    drive(daemon, work)


@pytest.mark.parametrize("way", ["load", "request"])
@pytest.mark.parametrize(("what", "words"), [("die", "status 3"), ("raise", "not today")])
def test_a_failure_is_known_when_its_client_is_told_and_ends_with_a_success(
    daemon: Daemon, switch: Switch, way: str, what: str, words: str
) -> None:
    async def work(driver: Driver) -> None:
        async def attempt() -> None:
            await (driver.pool.load(await driver.deployment()) if way == "load" else driver.ask(x=[1.0]))

        for _ in range(2):  # a known failure refuses nothing: it is met again
            switch.say(what)
            with pytest.raises(PredictorError, match=words):
                await attempt()
            assert words in await reason(driver)
        switch.say("load")
        await attempt()
        assert await reason(driver) == ""

    drive(daemon, work)


def test_a_load_leaves_a_predictor_that_answers_warm_and_another_load_starts_none(
    daemon: Daemon, switch: Switch
) -> None:
    async def work(driver: Driver) -> None:
        await driver.pool.load(await driver.deployment())
        assert not (await driver.ask(x=[1.0])).cold
        await driver.pool.load(await driver.deployment())
        assert driver.pool.counters == {"started_forked": 1}

    drive(daemon, work)


def test_a_load_goes_before_requests_that_wait_and_runs_with_none_of_them(
    daemon: Daemon, checkpoint: Callable[..., Path], folder: Path
) -> None:
    switch = Switch(daemon, checkpoint, folder / "switch", max_batch_size=8, batch_delay_s=0.0)

    async def work(driver: Driver) -> None:
        switch.say("wait")
        ended: list[str] = []

        async def note(name: str, waited: Any) -> Any:
            found = await waited
            ended.append(name)
            return found

        asked = [asyncio.ensure_future(note("request", driver.ask(x=[[1.0]]))) for _ in range(2)]
        await until_starting(driver)
        loads = [asyncio.ensure_future(note("load", driver.pool.load(await driver.deployment()))) for _ in range(2)]
        await asyncio.sleep(0)
        switch.say("load")
        answers = await asyncio.gather(*asked)
        await asyncio.gather(*loads)
        assert ended == ["load", "load", "request", "request"]
        assert {answer.run_rows for answer in answers} == {2}

    drive(daemon, work)


def test_a_load_that_is_given_up_leaves_nothing_that_waits(daemon: Daemon, switch: Switch) -> None:
    async def work(driver: Driver) -> None:
        switch.say("wait")
        load = asyncio.ensure_future(driver.pool.load(await driver.deployment()))
        await until_starting(driver)
        load.cancel()
        await asyncio.wait((load,))
        assert driver.pool.state((await driver.deployment()).key)["queued"] == 0
        switch.say("load")
        await driver.ask(x=[1.0])

    drive(daemon, work)


def test_a_predictor_that_is_never_ready_is_a_failure_of_the_model(daemon: Daemon, switch: Switch) -> None:
    async def work(driver: Driver) -> None:
        switch.say("wait")
        with pytest.raises(DeadlineError, match="--load-deadline-s"):
            await driver.pool.load(await driver.deployment())
        assert "--load-deadline-s" in await reason(driver)

    drive(daemon, work, load_deadline_s=0.5)


def test_what_says_nothing_of_the_model_is_not_remembered(
    daemon: Daemon, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(driver: Driver) -> None:
        async def lacking(environment: Environment) -> PredictorProcess:
            raise CapacityError("no descriptor left")

        with monkeypatch.context() as lack:
            lack.setattr(driver.pool._warm_pool, "take", lacking)
            with pytest.raises(CapacityError):
                await driver.pool.load(await driver.deployment())
        switch.say("wait")
        first = asyncio.ensure_future(driver.ask(x=[1.0]))
        await until_starting(driver)
        with pytest.raises(DeadlineError, match="was free within"):
            await driver.ask(wait_s=0.01, x=[1.0])
        second = asyncio.ensure_future(driver.ask(x=[1.0]))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await driver.ask(x=[1.0])
        assert await reason(driver) == ""
        switch.say("load")
        await asyncio.gather(first, second)

    drive(daemon, work, queue=2)


def test_a_request_that_its_predictor_refuses_shows_that_the_model_runs(daemon: Daemon, switch: Switch) -> None:
    async def work(driver: Driver) -> None:
        switch.say("raise")
        with pytest.raises(PredictorError):
            await driver.ask(x=[1.0])
        switch.say("load")
        with pytest.raises(CallerError, match="x is negative"):
            await driver.ask(x=[-1.0])
        assert await reason(driver) == ""

    drive(daemon, work)


def test_a_predictor_that_is_ended_while_it_loads_is_no_failure_of_its_model(
    daemon: Daemon, switch: Switch, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, "other", predictor={"call": "own_predictors:Scaler"})

    async def work(driver: Driver) -> None:
        switch.say("wait")
        load = asyncio.ensure_future(driver.pool.load(await driver.deployment()))
        await until_starting(driver)
        load.cancel()
        await driver.ask("other", x=[1.0])  # which takes the only slot
        assert await reason(driver) == ""
        load = asyncio.ensure_future(driver.pool.load(await driver.deployment()))
        await until_starting(driver)
        await driver.pool.close(0.0)
        with pytest.raises(DrainingError):
            await load
        assert await reason(driver) == ""
        with pytest.raises(DrainingError):
            await driver.pool.load(await driver.deployment())

    drive(daemon, work, predictors=1)


def test_a_second_predictor_that_fails_is_no_failure_while_the_first_one_runs(
    daemon: Daemon, checkpoint: Callable[..., Path], folder: Path
) -> None:
    switch = Switch(daemon, checkpoint, folder / "switch", instances=2)

    async def work(driver: Driver) -> None:
        await driver.pool.load(await driver.deployment())
        switch.say("raise")
        await asyncio.gather(*(driver.ask(x=[1.0]) for _ in range(2)))
        await until(lambda: driver.pool.counters.get("ended") == 1)
        assert await reason(driver) == ""

    drive(daemon, work)


def test_a_changed_manifest_has_no_failure_yet(daemon: Daemon, switch: Switch, checkpoint: Callable[..., Path]) -> None:
    async def work(driver: Driver) -> None:
        switch.say("die")
        with pytest.raises(PredictorError):
            await driver.pool.load(await driver.deployment())
        register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})
        driver.deployments.forget("m")
        assert await reason(driver) == ""

    drive(daemon, work)
