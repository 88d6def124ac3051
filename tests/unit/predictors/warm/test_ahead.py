"""Preparations for first requests: templates begun before a request needs them, and what they have learned by then."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleets import Driver, drive, register
from nursing import NUMPY, OTHER, nurse, until
from trims_predictors.warm.preload_learner import read_used, write_learned
from trims_predictors.warm.reclaim_policy import Limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_predictors.warm.warm_pool import WarmPool

    from trims.daemon.main import Daemon


@pytest.fixture
def handler(daemon: Daemon, checkpoint: Callable[..., Path], tmp_path: Path) -> Daemon:
    """A function that imports a module which no template has."""
    (tmp_path / "h.py").write_text("import colorsys\n\n\ndef handler(model, event):\n    return event\n")
    register(daemon, checkpoint, predictor={"handler": f"{tmp_path}/h.py:handler"})
    return daemon


def test_a_model_that_was_added_finds_its_template_and_a_spare(handler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        deployment = await driver.deployments.of("m")
        driver.pool.ahead.prepare(deployment)
        assert driver.pool.report()["preparing"] == ["m"]
        await until(lambda: not driver.pool.report()["preparing"])
        await until(lambda: driver.pool.report()["spares"] == {"numpy": 1})
        template = driver.pool._warm_pool._inventory.serving(deployment.environment)
        assert template is not None
        assert "colorsys" in template.modules
        assert driver.pool.counters == {}

    drive(handler, work, spares=1)


def test_a_model_that_cannot_be_loaded_leaves_the_others_prepared(
    daemon: Daemon, checkpoint: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "h.py").write_text("raise ValueError('by hand')\n")
    register(daemon, checkpoint, "bad", predictor={"handler": f"{tmp_path}/h.py:handler"})
    register(daemon, checkpoint, "good", predictor={"call": "own_predictors:Scaler"})

    async def work(driver: Driver) -> None:
        for name in ("bad", "good"):
            driver.pool.ahead.prepare(await driver.deployments.of(name))
        await until(lambda: not driver.pool.report()["preparing"])
        assert driver.pool.report()["templates"]["numpy"]["started"] >= 1

    with caplog.at_level("INFO"):
        drive(daemon, work)
    assert "bad is not prepared for its first request" in caplog.text


def test_of_very_many_models_the_last_ones_are_prepared(handler: Daemon) -> None:
    import dataclasses

    async def work(driver: Driver) -> None:
        deployment = await driver.deployments.of("m")
        for number in range(40):
            key = dataclasses.replace(deployment.key, model=str(number))
            driver.pool.ahead.prepare(dataclasses.replace(deployment, key=key, model=str(number)))
        assert driver.pool.ahead.report() == [str(number) for number in range(24, 40)]

    drive(handler, work)


def test_without_room_in_memory_no_template_is_begun(modules: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        warm_pool._inventory._template_bytes[OTHER] = 1 << 40
        assert not await warm_pool.begin(OTHER)
        assert warm_pool._inventory.serving(OTHER) is None

    nurse(modules, work, limits=Limits(most_bytes=1 << 30))


def test_a_template_that_a_request_needs_gives_way_no_more(modules: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        begun = asyncio.ensure_future(warm_pool.begin(NUMPY))
        await asyncio.sleep(0)
        template: Any = warm_pool._inventory.serving(NUMPY)
        assert template._niceness > 0
        taken = asyncio.ensure_future(warm_pool.take(NUMPY))
        await asyncio.sleep(0)
        assert template._niceness == 0
        assert await begun
        process = await taken
        assert process.how == "forked"
        await process.end()

    nurse(modules, work)


def test_the_next_endpoint_begins_what_was_used_lately(modules: Path) -> None:
    path = modules / "learned.json"
    week_s = 7 * 86_400.0
    write_learned(path, {NUMPY: ["colorsys"], OTHER: []}, {NUMPY: time.time() - 60, OTHER: time.time() - 2 * week_s})

    async def work(warm_pool: WarmPool) -> None:
        warm_pool.begin_recent()
        await until(lambda: (template := warm_pool._inventory.serving(NUMPY)) and template.ready.done())
        assert warm_pool._inventory.serving(OTHER) is None

    before = read_used(path)
    nurse(modules, work, learned=path)
    assert read_used(path) == before, "what is begun ahead is no use"


def test_a_use_is_noted_for_the_next_endpoint(modules: Path) -> None:
    path = modules / "learned.json"

    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        await until(lambda: NUMPY in read_used(path))

    nurse(modules, work, learned=path)
    assert read_used(path)[NUMPY] == pytest.approx(time.time(), abs=600)
