"""Hot spares with real daemons, templates and predictors: who gets one, what it holds, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import Driver, arrays, drive, register
from in_namespaces import namespaces
from nursing import until
from trims_predictors.sandbox.sandbox import NAMESPACES, choose
from trims_predictors.tensors import from_array
from trims_predictors.warm.hot_spares import ENTER, HALF_LIFE_S, MOST, STAY, Demand
from trims_predictors.warm.reclaim_policy import Limits as TemplateLimits

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_predictors.deployment.deployment import Answer

    from trims.daemon.main import Daemon

#: A pool in which a predictor ends with its request.
FLEET = {"keep_alive_s": 0.0, "hot_spares": 1}


@pytest.fixture
def model(daemon: Daemon, checkpoint: Callable[..., Path]) -> Daemon:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Held"})
    return daemon


def pid(answer: Answer) -> int:
    return int(arrays(answer)["pid"][0])


async def settled(driver: Driver) -> None:
    """Wait until no predictor runs, no template learns and no hot spare is made."""
    warm_pool, hot = driver.pool._warm_pool, driver.pool.hot
    await until(lambda: not (driver.pool._running or warm_pool._learner.running() or hot._tending))


async def heated(driver: Driver, name: str = "m") -> None:
    """Ask until the model has a hot spare."""
    while name not in driver.pool.hot.report():
        await driver.ask(name, x=[1.0])
        await settled(driver)


def leases(daemon: Daemon) -> int:
    with admin(daemon.config.runtime_dir) as control:
        return control.status().stats.leases


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run in a thread work that asks the daemon and waits, which would stop the loop."""
    return await asyncio.to_thread(work)


def test_a_model_in_steady_demand_gets_a_hot_spare_that_one_request_uses_up(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        answers = []
        for _ in range(3):
            assert driver.pool.hot.report() == {}
            answers.append(await driver.ask(x=[1.0, 2.0]))
            await settled(driver)
        assert [answer.how for answer in answers] == ["forked"] * 3
        assert driver.pool.report()["hot"] == {"m": 1}
        waiting = driver.pool.hot._waiting[0].process
        answer = await driver.ask(x=[1.0, 2.0])
        assert arrays(answer)["y"].tolist() == [2.0, 4.0]
        assert (answer.how, answer.cold, answer.place, answer.warm) == ("hot", True, "cpu", True)
        assert pid(answer) == waiting.pid
        assert answer.stages.keys() >= {"queue_s", "process_s", "open_s", "predict_s", "run_s"}
        await settled(driver)
        again = await driver.ask(x=[3.0])
        assert (again.how, pid(again) == waiting.pid) == ("hot", False)
        assert driver.pool.counters["started_hot"] == 2

    drive(model, work, **FLEET)


def test_a_hot_spare_rehearses_the_shapes_of_the_last_request_and_no_values(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Rehearsed"})

    async def work(driver: Driver) -> None:
        await heated(driver)
        answer = await driver.ask(x=[1.0, 2.0, 3.0])
        assert (answer.how, arrays(answer)["rehearsed"].tolist()) == ("hot", [1.0])
        assert arrays(answer)["y"].tolist() == [2.0, 4.0, 6.0]
        await settled(driver)
        assert await in_thread(lambda: leases(daemon)) == 0
        answer = await driver.ask(x=[1.0])
        assert (answer.how, arrays(answer)["rehearsed"].tolist()) == ("hot", [3.0])

    drive(daemon, work, **FLEET)


def test_a_model_whose_rehearsal_fails_has_hot_spares_without(
    daemon: Daemon, checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Rehearsed", "options": {"refuses": True}})

    async def work(driver: Driver) -> None:
        await heated(driver)
        for _ in range(2):
            answer = await driver.ask(x=[1.0])
            assert (answer.how, arrays(answer)["rehearsed"].tolist()) == ("hot", [])
            await settled(driver)

    drive(daemon, work, **FLEET)
    assert caplog.text.count("hot spares of m run nothing before their first request: ") == 1
    assert "zeros are no input" in caplog.text


def test_a_hot_spare_holds_no_lease_and_its_weights_can_be_evicted(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        await heated(driver)
        assert await in_thread(lambda: leases(model)) == 0
        with admin(model.config.runtime_dir) as control:
            await in_thread(lambda: control.evict("m", "cpu"))
        answer = await driver.ask(x=[2.0])
        assert arrays(answer)["y"].tolist() == [4.0]
        assert answer.how == "forked"
        assert driver.pool.counters["hot_unused"] == 1
        assert driver.pool.hot.report() == {}

    drive(model, work, **FLEET)


def test_a_hot_spare_loads_no_weights_that_were_evicted(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        await heated(driver)
        await driver.ask(x=[1.0])
        with admin(model.config.runtime_dir) as control:
            await in_thread(lambda: control.evict("m", "cpu", drain=True))
        await settled(driver)
        assert driver.pool.hot.report() == {}
        with admin(model.config.runtime_dir) as control:
            assert not [each for each in control.show("m").replicas if each.place == "cpu"]

    drive(model, work, **FLEET)


def test_hot_spares_end_when_their_model_is_registered_again(model: Daemon, checkpoint: Callable[..., Path]) -> None:
    async def work(driver: Driver) -> None:
        await heated(driver)
        waiting = driver.pool.hot._waiting[0].process
        predictor = {"call": "own_predictors:Held", "options": {"bias": 5.0}}
        await in_thread(lambda: register(model, checkpoint, predictor=predictor))
        while arrays(answer := await driver.ask(x=[1.0]))["y"].tolist() != [7.0]:
            await asyncio.sleep(0.1)
        assert pid(answer) != waiting.pid
        await waiting.ended

    drive(model, work, **FLEET)


def test_a_file_that_is_replaced_is_noticed_by_the_hot_spare_at_its_use(
    model: Daemon, checkpoint: Callable[..., Path]
) -> None:
    async def work(driver: Driver) -> None:
        await heated(driver)
        await in_thread(lambda: checkpoint("m", {"factor": np.array(3.0)}))
        await asyncio.sleep(0.6)  # for which the daemon trusts its last look at a file
        answer = await driver.ask(x=[1.0])
        assert arrays(answer)["y"].tolist() == [3.0]
        assert answer.how == "forked"

    drive(model, work, **FLEET)


def test_hot_spares_wait_over_a_restart_of_the_daemon(model: Daemon, serve: Callable[..., Daemon]) -> None:
    async def work(driver: Driver) -> None:
        await heated(driver)
        deployment = await driver.deployment()
        await in_thread(model.stop)
        await in_thread(serve)
        answer = await driver.pool.infer(deployment, [from_array("x", np.array([1.0]))])
        assert (answer.how, arrays(answer)["y"].tolist()) == ("hot", [2.0])

    drive(model, work, **FLEET)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_hot_spare_that_dies_while_it_waits_costs_no_request(model: Daemon, noticed: bool) -> None:
    async def work(driver: Driver) -> None:
        await heated(driver)
        waiting, deployment = driver.pool.hot._waiting[0].process, await driver.deployment()
        os.kill(waiting.pid, signal.SIGKILL)
        if noticed:
            await waiting.ended
            assert driver.pool.hot.report() == {}
        answer = await driver.pool.infer(deployment, [from_array("x", np.array([1.0]))])
        assert (answer.how, arrays(answer)["y"].tolist()) == ("forked", [2.0])
        await settled(driver)
        assert driver.pool.hot.report() == {"m": 1}

    drive(model, work, **FLEET)


def test_a_model_whose_class_reads_its_weights_meanwhile_gets_no_more_hot_spares(
    daemon: Daemon, checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Restless"})

    async def work(driver: Driver) -> None:
        hot = driver.pool.hot
        while not hot._unfit:
            assert (await driver.ask(x=[1.0])).how in ("forked", "hot")
            await settled(driver)
            await asyncio.sleep(0.1)
        for _ in range(3):
            assert (await driver.ask(x=[1.0])).how != "hot"
            await settled(driver)
        assert hot.report() == {}

    drive(daemon, work, **FLEET)
    assert "a hot spare of m read its weights while it waited (it was ended by SIGSEGV)" in caplog.text


def test_a_request_takes_the_hot_spare_that_is_loading(
    daemon: Daemon, checkpoint: Callable[..., Path], folder: Path
) -> None:
    flag = folder / "go"
    predictor = {"call": "own_predictors:Held", "options": {"until": str(flag)}}
    register(daemon, checkpoint, predictor=predictor)

    async def work(driver: Driver) -> None:
        flag.touch()
        for _ in range(2):
            await driver.ask(x=[1.0])
            await settled(driver)
        await driver.ask(x=[1.0])
        flag.unlink()
        hot = driver.pool.hot
        await until(lambda: hot._loading is not None)
        making = hot._loading
        assert making is not None
        asked = asyncio.ensure_future(driver.ask(x=[1.0]))
        await until(lambda: making.claimed)
        flag.touch()
        answer = await asked
        assert (answer.how, pid(answer)) == ("hot", making.process.pid)

    drive(daemon, work, **FLEET)


def test_requests_that_come_one_after_the_other_get_a_hot_spare_all_the_same(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        async with asyncio.timeout(60.0):
            while (await driver.ask(x=[1.0])).how != "hot":
                await asyncio.sleep(0.05)

    drive(model, work, **FLEET)


def test_a_request_does_not_wait_for_a_hot_spare_that_does_not_load_yet(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        hot, warm_pool = driver.pool.hot, driver.pool._warm_pool
        for _ in range(2):
            await driver.ask(x=[1.0])
            await settled(driver)
        begun, made, warm_pool_make = asyncio.Event(), asyncio.Event(), warm_pool.make

        async def slowly(environment: Any) -> Any:
            begun.set()
            process = await warm_pool_make(environment)
            await made.wait()
            return process

        warm_pool.make = slowly  # type: ignore[method-assign]
        await driver.ask(x=[1.0])
        await begun.wait()
        assert (await driver.ask(x=[1.0])).how == "forked"
        made.set()
        await settled(driver)
        assert hot.report() == {"m": 1}

    drive(model, work, **FLEET)


def test_a_manifest_may_state_hot_spares_which_are_there_before_the_first_request(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Held", "hot": 2})

    async def work(driver: Driver) -> None:
        driver.pool.hot.want(await driver.deployment())
        await until(lambda: driver.pool.hot.report() == {"m": 2})
        assert (await driver.ask(x=[1.0])).how == "hot"
        await settled(driver)
        assert driver.pool.hot.report() == {"m": 2}

    drive(daemon, work, keep_alive_s=0.0, hot_spares=3)


def test_a_manifest_may_refuse_hot_spares(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Held", "hot": 0})

    async def work(driver: Driver) -> None:
        for _ in range(4):
            assert (await driver.ask(x=[1.0])).how == "forked"
            await settled(driver)
        assert driver.pool.hot.report() == {}

    drive(daemon, work, **FLEET)


def test_a_model_that_cools_loses_its_hot_spare(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        hot, later_s = driver.pool.hot, [0.0]
        clock = hot._clock
        hot._clock = lambda: clock() + later_s[0]
        await heated(driver)
        waiting = hot._waiting[0].process
        later_s[0] = 1000.0
        hot.tend()
        await waiting.ended
        assert hot.report() == {}

    drive(model, work, **FLEET)


def test_hot_spares_go_before_spares_when_memory_is_needed(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        warm_pool, hot = driver.pool._warm_pool, driver.pool.hot
        await heated(driver)
        deployment = await driver.deployment()
        waiting = hot._waiting[0].process
        await until(lambda: warm_pool._inventory.spares.get(deployment.environment) and not warm_pool._tending)
        await until(lambda: waiting.pid in warm_pool._reclaimer.counted)
        await until(lambda: warm_pool._inventory.spares[deployment.environment][0].pid in warm_pool._reclaimer.counted)
        warm_pool._reclaimer.limits = TemplateLimits(None, warm_pool._reclaimer.total_bytes - 1)
        warm_pool._reclaimer.wake()
        await waiting.ended
        assert hot.report() == {}
        assert warm_pool.spares() == {"numpy": 1}
        hot._failed.clear()
        await until(lambda: warm_pool._reclaimer.total_bytes <= (warm_pool._reclaimer.limits.most_bytes or 0))
        hot.tend()
        await until(lambda: not hot._tending)
        assert hot.report() == {}

    drive(model, work, spares=1, **FLEET)


def test_a_predictor_that_cannot_be_loaded_ahead_is_said_once(
    daemon: Daemon, checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Missing", "hot": 1})

    async def work(driver: Driver) -> None:
        driver.pool.hot.want(await driver.deployment())
        await until(lambda: driver.pool.hot._failed)
        driver.pool.hot.want(await driver.deployment())
        await until(lambda: not driver.pool.hot._tending)

    drive(daemon, work, **FLEET)
    assert caplog.text.count("no hot spare of m") == 1


def test_without_room_for_hot_spares_none_are_made(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        for _ in range(4):
            assert (await driver.ask(x=[1.0])).how == "forked"
            await settled(driver)
        assert not driver.pool.hot._deployments

    drive(model, work, keep_alive_s=0.0, hot_spares=0)


def test_the_end_of_a_pool_ends_hot_spares_that_wait_or_load(
    daemon: Daemon, checkpoint: Callable[..., Path], folder: Path
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Held", "hot": 1})
    never = {"call": "own_predictors:Held", "hot": 1, "options": {"until": str(folder / "never")}}
    register(daemon, checkpoint, "n", predictor=never)

    async def work(driver: Driver) -> list[int]:
        hot = driver.pool.hot
        hot.want(await driver.deployment())
        await until(lambda: hot.report() == {"m": 1})
        hot.want(await driver.deployment("n"))
        await until(lambda: hot._loading is not None)
        assert hot._loading is not None
        return [each.process.pid for each in (hot._waiting[0], hot._loading)]

    pids = drive(daemon, work, keep_alive_s=0.0, hot_spares=2)
    assert len(pids) == 2
    assert not [each for each in pids if os.path.exists(f"/proc/{each}")]


@namespaces
def test_in_namespaces_hot_spares_wait_without_a_lease_and_wake_too(model: Daemon) -> None:
    async def work(driver: Driver) -> None:
        await heated(driver)
        assert await in_thread(lambda: leases(model)) == 0
        answer = await driver.ask(x=[1.0])
        assert (answer.how, arrays(answer)["y"].tolist()) == ("hot", [2.0])

    drive(model, work, isolation=choose(NAMESPACES, []), **FLEET)


# -- which models are hot ---------------------------------------------------------------------------------------------

BY_DEMAND = {"a": None, "b": None}


def demand(**times: list[float]) -> Demand:
    made = Demand()
    for model, starts in times.items():
        for at_s in starts:
            made.started(model, at_s)
    return made


def test_a_model_is_hot_from_its_third_start_within_a_short_time_on() -> None:
    asked = demand(a=[0.0, 1.0])
    assert asked.choose(BY_DEMAND, 2, 1.0) == {}
    asked.started("a", 2.0)
    assert asked.choose(BY_DEMAND, 2, 2.0) == {"a": 1}


def test_starts_that_lie_far_apart_never_make_a_model_hot() -> None:
    asked = demand(a=[100.0 * number for number in range(50)])
    assert asked.choose(BY_DEMAND, 2, 4900.0) == {}


def test_a_hot_model_stays_hot_at_a_rate_that_would_not_make_it_hot() -> None:
    asked = demand(a=[0.0, 1.0, 2.0])
    assert asked.choose(BY_DEMAND, 2, 2.0) == {"a": 1}
    now_s = 2.0
    for _ in range(20):
        now_s += 100.0
        assert asked.choose(BY_DEMAND, 2, now_s) == {"a": 1}
        asked.started("a", now_s)
    assert asked.count("a", now_s) < ENTER


def test_a_model_cools_after_its_last_start_however_many_there_were() -> None:
    asked = demand(a=[number / 100 for number in range(10000)])
    assert asked.count("a", 100.0) <= MOST
    assert asked.choose(BY_DEMAND, 2, 100.0) == {"a": 1}
    assert asked.choose(BY_DEMAND, 2, 100.0 + 3.1 * HALF_LIFE_S) == {}
    assert asked.count("a", 100.0 + 3.1 * HALF_LIFE_S) < STAY
    assert asked.choose(BY_DEMAND, 2, 1e6) == {}
    assert asked.count("a", 1e6) == 0.0


def test_the_models_with_the_most_starts_are_chosen_within_the_bound() -> None:
    asked = demand(a=[0.0, 1.0, 2.0], b=[0.0, 1.0, 1.5, 2.0])
    assert asked.choose(BY_DEMAND, 1, 2.0) == {"b": 1}
    assert asked.choose(BY_DEMAND, 2, 2.0) == {"a": 1, "b": 1}
    assert asked.choose(BY_DEMAND, 0, 2.0) == {}


def test_a_hot_model_keeps_its_place_until_another_one_counts_twice_as_much() -> None:
    asked = demand(a=[0.0, 0.0, 0.0])
    assert asked.choose(BY_DEMAND, 1, 0.0) == {"a": 1}
    for _ in range(5):
        asked.started("b", 0.0)
    assert asked.choose(BY_DEMAND, 1, 0.0) == {"a": 1}
    asked.started("b", 0.0)
    asked.started("b", 0.0)
    assert asked.choose(BY_DEMAND, 1, 0.0) == {"b": 1}


def test_what_manifests_state_comes_first_one_for_each_then_the_rest() -> None:
    asked = demand(a=[0.0, 0.0, 0.0])
    stated = {"a": None, "x": 2, "y": 3}
    assert asked.choose(stated, 1, 0.0) == {"x": 1}
    assert asked.choose(stated, 2, 0.0) == {"x": 1, "y": 1}
    assert asked.choose(stated, 3, 0.0) == {"x": 2, "y": 1}
    assert asked.choose(stated, 9, 0.0) == {"x": 2, "y": 3, "a": 1}


def test_a_manifest_that_states_none_has_none_whatever_the_demand() -> None:
    assert demand(a=[0.0] * 8).choose({"a": 0}, 2, 0.0) == {}


def test_only_models_that_may_have_hot_spares_are_chosen() -> None:
    assert demand(a=[0.0] * 8).choose({}, 2, 0.0) == {}


def test_a_clock_that_seems_to_go_back_counts_as_usage_still() -> None:
    asked = demand(a=[10.0, 9.0, 8.0])
    assert asked.count("a", 7.0) == 3.0
