"""Growth of deployments: when one more predictor is due, and pools that start it and end it again."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest
from fleets import Driver, arrays, drive, register, text
from nursing import until
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.pool import pool as pools
from trims_predictors.pool.growth import Growth

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

KEY = DeploymentKey("m")


@pytest.fixture
def growth() -> Growth:
    """Two processors, and a start that takes 0.25 s: 0.05 to fork, 0.2 to load."""
    made = Growth(2)
    made.started(KEY, {"process_s": 4.0, "import_s": 2.0, "load_s": 0.2})
    return made


def test_nothing_is_due_before_a_predictor_has_loaded_the_model() -> None:
    assert Growth(2).due_s(KEY, [1.0], 1.0) is None


@pytest.mark.parametrize(
    ("begins_s", "queued_s", "due_s"),
    [
        ([10.0], 10.1, 10.25),  # the run has taken as long as a start
        ([10.9], 10.1, 10.35),  # runs are short, and the request has waited for as long
        ([10.0, 10.0, 10.0], 12.0, 10.25),
    ],
)
def test_a_request_is_due_after_the_time_of_a_start(
    growth: Growth, begins_s: list[float], queued_s: float, due_s: float
) -> None:
    assert growth.due_s(KEY, begins_s, queued_s) == pytest.approx(due_s)


@pytest.mark.parametrize(("shortest_s", "long_s"), [(math.inf, 1.0), (0.1, 0.4), (0.01, 0.25)])
def test_beyond_two_for_each_processor_all_runs_must_be_long_ones(
    growth: Growth, shortest_s: float, long_s: float
) -> None:
    assert growth.due_s(KEY, [10.0, 10.0, 10.5, 10.0], 10.0, shortest_s) == pytest.approx(10.5 + long_s)
    assert growth.due_s(KEY, [10.0, 10.5], None, shortest_s) == pytest.approx(10.5 + long_s)


def test_the_quickest_start_counts(growth: Growth) -> None:
    growth.started(KEY, {"load_s": 5.0})
    assert growth.due_s(KEY, [10.0], 10.0) == pytest.approx(10.25)
    growth.started(KEY, {"load_s": 0.1})
    assert growth.due_s(KEY, [10.0], 10.0) == pytest.approx(10.15)


def test_a_start_that_failed_is_tried_again_after_half_a_minute(growth: Growth) -> None:
    growth.failed(KEY, 12.0)
    assert growth.due_s(KEY, [10.0], 10.0) == pytest.approx(42.0)


# -- pools ---------------------------------------------------------------------------------------------------------


def troubled(daemon: Daemon, checkpoint: Callable[..., Path], **fields: object) -> Daemon:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Troubled", **fields})
    return daemon


async def hanging(driver: Driver, count: int) -> list[asyncio.Future[object]]:
    """Runs that do not end by themselves, each in a predictor of its own."""
    await driver.ask(do=text("nothing"))
    runs = [asyncio.ensure_future(driver.ask(do=text("hang"))) for _ in range(count)]
    key = (await driver.deployment()).key
    await until(lambda: driver.pool.state(key)["busy"] >= count)
    return runs


async def end(runs: list[asyncio.Future[object]]) -> None:
    for each in runs:
        each.cancel()
    await asyncio.wait(runs)


def test_requests_behind_runs_that_do_not_end_are_answered(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    async def work(driver: Driver) -> None:
        runs = await hanging(driver, 3)
        pids = {int(arrays(await driver.ask(do=text("nothing")))["done"][0]) for _ in range(5)}
        assert len(pids) <= 2  # a further one, and one ahead of the next request
        await end(runs)

    drive(troubled(daemon, checkpoint), work, most_instances=8)


def test_without_memory_for_further_predictors_requests_wait_and_the_log_says_why(
    daemon: Daemon, checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(driver: Driver) -> None:
        runs = await hanging(driver, 1)
        waiting = asyncio.ensure_future(driver.ask(do=text("nothing")))
        await until(lambda: "no further predictor is started" in caplog.text)
        assert driver.pool.state((await driver.deployment()).key)["queued"] == 1
        await end([*runs, waiting])

    with caplog.at_level("INFO"):
        drive(troubled(daemon, checkpoint), work, most_instances=8, most_further_bytes=0)
    assert "--further-memory" in caplog.text


def test_further_predictors_end_when_they_idle(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(driver: Driver) -> None:
        await driver.ask(do=text("nothing"))
        await asyncio.gather(*(driver.ask(do=text("nap")) for _ in range(4)))
        assert driver.pool.counters["started_forked"] > 1
        key = (await driver.deployment()).key
        await until(lambda: driver.pool.state(key) == {"queued": 0, "starting": 0, "idle": 1, "busy": 0})

    monkeypatch.setattr(pools, "SURPLUS_KEEP_ALIVE_S", 0.2)
    drive(troubled(daemon, checkpoint), work, most_instances=8)


def test_an_idle_predictor_stays_beside_runs_that_take_long(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(driver: Driver) -> None:
        runs = await hanging(driver, 2)
        key = (await driver.deployment()).key
        await until(lambda: driver.pool.state(key)["idle"] == 1)  # ahead of the next request
        await driver.ask(do=text("nothing"))
        await asyncio.sleep(0.3)
        assert driver.pool.state(key)["idle"] == 1
        assert driver.pool.counters == {"started_forked": 3}
        await end(runs)

    monkeypatch.setattr(pools, "SURPLUS_KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr("trims_predictors.pool.growth.processors", lambda: 2)
    drive(troubled(daemon, checkpoint), work, most_instances=8)
