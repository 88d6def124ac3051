"""The pool with real daemons, templates and predictors: answers, isolation, deadlines, and nothing left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import Driver, arrays, drive, register, text
from looking import wait_until
from nursing import until
from trims_client import connect
from trims_predictors.tensors import from_array
from trims_predictors.warm.reclaim_policy import Limits as TemplateLimits

from trims.control import admin
from trims.core.errors import (
    BusyError,
    CallerError,
    CapacityError,
    DeadlineError,
    DrainingError,
    ModelNotFoundError,
    NotSupportedError,
    PredictorError,
)
from trims.testing.descriptors import few_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client.weights import Weights
    from trims_predictors.children.launcher import Environment
    from trims_predictors.children.worker_process import PredictorProcess
    from trims_predictors.deployment.deployment import Answer
    from trims_predictors.pool.dispatch import BegunRun

    from trims.daemon.main import Daemon

#: Like no other time that the pool waits for.
KEEP_ALIVE_S = 1234.5


@pytest.fixture
def scaler(daemon: Daemon, checkpoint: Callable[..., Path]) -> Daemon:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler", "options": {"bias": 1.0}})
    return daemon


@pytest.fixture
def troubled(daemon: Daemon, checkpoint: Callable[..., Path]) -> Daemon:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Troubled"})
    return daemon


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_of_a_predictor_that_prints_without_end_little_is_passed_on(
    troubled: Daemon, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work(driver: Driver) -> None:
        await driver.ask(do="talk")
        pids.append(int(arrays(await driver.ask(do="nothing"))["done"][0]))

    pids: list[int] = []
    drive(troubled, work)
    told = capfd.readouterr().err
    assert f" INFO predictor {pids[0]}: line 0 of very many [model=m]\n" in told.partition("\n")[0] + "\n"
    assert len(told) < 200_000
    assert "lines are left out: it prints more than 16 KiB a second" in told


def test_a_spare_is_taken_before_a_fork_and_made_again_after_an_answer(scaler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        deployment = await driver.deployment()
        driver.pool.prepare(deployment.environment)
        warm_pool = driver.pool._warm_pool
        await until(lambda: driver.pool.report()["spares"] == {"numpy": 1})
        assert (await driver.ask(x=[1.0])).how == "spare"
        assert driver.pool.report()["models"] == {"m": {"queued": 0, "starting": 0, "idle": 1, "busy": 0}}
        await until(lambda: warm_pool._inventory.spares.get(deployment.environment))

    drive(scaler, work, spares=1)


@pytest.mark.skipif(not os.access("/proc/self/pagemap", os.R_OK), reason="the kernel does not tell pages")
def test_spares_copy_ahead_what_the_first_predictor_of_a_model_wrote(scaler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        warm_pool, deployment = driver.pool._warm_pool, await driver.deployment()
        driver.pool.prepare(deployment.environment)
        await until(lambda: warm_pool._inventory.spares.get(deployment.environment))
        pages = warm_pool._inventory.spares[deployment.environment][0].pages
        assert pages is not None
        assert (pages.lacks(deployment.key), pages.page_ranges()) == (True, [])
        await driver.ask(x=[1.0])
        assert not pages.lacks(deployment.key)
        assert sum(pages.page_ranges()[1::2]) > 0
        await until(lambda: warm_pool._inventory.spares.get(deployment.environment))
        assert warm_pool._inventory.spares[deployment.environment][0].pages is pages

    drive(scaler, work, spares=1)


def test_an_idle_predictor_ends_for_one_that_finds_no_room_for_its_model(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes="8KiB")  # of one image
    for number, name in enumerate(("a", "b")):
        path = checkpoint(name, {"factor": np.array(2.0), "other": np.array(float(number))})
        predictor = {"call": "own_predictors:Scaler"}
        manifest = {
            "name": name,
            "artifact": {"path": str(path)},
            "framework": {"name": "numpy"},
            "predictor": predictor,
        }
        with admin(daemon.config.runtime_dir) as control:
            control.add({**manifest, "residency": {"place": "cpu"}}, replace=True, lazy=True)

    async def work(driver: Driver) -> None:
        for name in ("a", "b", "a"):
            assert arrays(await driver.ask(name, x=[1.5]))["y"].tolist() == [3.0]
            idle = [model for model, line in driver.pool.report()["models"].items() if line["idle"]]
            assert idle == [name]

    drive(daemon, work)


@pytest.mark.parametrize("stays", [False, True])
def test_a_request_waits_for_the_last_reader_of_weights_that_are_evicted(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, residency={"place": "cpu"})
    runtime_dir = daemon.config.runtime_dir
    monkeypatch.setattr("trims_predictors.deployment.loading._READERS_S", 0.2 if stays else 60.0)

    async def work(driver: Driver, weights: Weights) -> None:
        asked = asyncio.ensure_future(driver.ask(x=[1.5]))
        if stays:
            with pytest.raises(BusyError, match=r"^m: the model is being evicted from cpu .*`trims ps`.*: ask again"):
                await asked
        else:
            while not driver.pool.state((await driver.deployment()).key)["starting"]:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)  # it knows by now that the weights leave
            assert not asked.done()
            weights.close()
            assert arrays(await asked)["y"].tolist() == [3.0]

    with admin(runtime_dir) as control, connect(runtime_dir) as session, session.open("m", place="cpu") as weights:
        assert control.evict("m", "cpu", drain=True).draining == ("cpu",)
        drive(daemon, lambda driver: work(driver, weights))


def test_spares_go_first_when_templates_hold_too_much_and_are_not_made_again(scaler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        warm_pool = driver.pool._warm_pool
        deployment = await driver.deployment()

        def spares() -> int:
            return len(warm_pool._inventory.spares.get(deployment.environment, ()))

        await driver.ask(x=[1.0])
        await until(lambda: not warm_pool._learner.running())
        while not (
            spares() and warm_pool._inventory.spares[deployment.environment][0].pid in warm_pool._reclaimer.counted
        ):
            await asyncio.sleep(0.01)
        warm_pool._reclaimer.limits = TemplateLimits(None, warm_pool._reclaimer.total_bytes - 1)
        warm_pool._reclaimer.wake()
        await until(lambda: not spares())
        assert (await driver.ask(x=[1.0])).how == "running"
        await until(lambda: not warm_pool._tending)
        assert not spares()
        assert warm_pool._inventory.templates[deployment.environment].lost is None

    drive(scaler, work, spares=1)


def test_the_predictor_s_own_description_is_checked_from_its_first_load_on(scaler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        assert driver.pool.signatures.of(await driver.deployment()) == ((), ())
        await driver.ask(x=[1.0])
        (taken,), (given,) = driver.pool.signatures.of(await driver.deployment())
        assert (taken.name, taken.dtype, taken.shape, given.name) == ("x", "FP64", (-1,), "y")
        with pytest.raises(CallerError, match="needs the input 'x'"):
            await driver.ask(z=[1.0])

    drive(scaler, work)


def test_inputs_that_the_manifest_does_not_name_never_reach_a_predictor(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    inputs = [{"name": "x", "dtype": "FP64", "shape": [-1, 2]}]
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=inputs)

    async def work(driver: Driver) -> None:
        for wrong in ({"x": [1.0]}, {"x": [[1, 2]]}, {"x": [[1.0, 2.0]], "z": [1.0]}, {}):
            with pytest.raises(CallerError):
                await driver.ask(**wrong)
        assert not driver.pool.counters

    drive(daemon, work)


@pytest.mark.parametrize(
    ("do", "error", "message"),
    [
        ("refuse", CallerError, "this one cannot be answered"),
        ("raise_", PredictorError, "failed in predict: ZeroDivisionError: by hand"),
        ("exit", PredictorError, "failed in predict: SystemExit: 3"),
        ("interrupt", PredictorError, "failed in predict: KeyboardInterrupt: by hand"),
        ("raise_long", PredictorError, "failed in predict: RuntimeError: EEE"),
    ],
)
def test_an_error_of_a_predictor_is_told_and_the_predictor_lives_on(
    troubled: Daemon, do: str, error: type[Exception], message: str
) -> None:
    async def work(driver: Driver) -> None:
        before = arrays(await driver.ask(do=text("nothing")))["done"]
        with pytest.raises(error, match=message):
            await driver.ask(do=text(do))
        assert arrays(await driver.ask(do=text("nothing")))["done"] == before

    drive(troubled, work)


@pytest.mark.parametrize(
    ("do", "message"),
    [("crash", "ended by SIGSEGV"), ("leave", "exited with status 9"), ("close_all", "ended")],
)
def test_a_predictor_that_dies_fails_its_request_and_the_next_one_has_another(
    troubled: Daemon, do: str, message: str
) -> None:
    async def work(driver: Driver) -> None:
        with pytest.raises(PredictorError, match=message):
            await driver.ask(do=text(do))
        answer = await driver.ask(do=text("nothing"))
        assert answer.cold

    drive(troubled, work)


def test_a_run_that_takes_too_long_is_ended_and_so_is_what_it_started(troubled: Daemon) -> None:
    async def work(driver: Driver) -> int:
        left = int(arrays(await driver.ask(do=text("fork")))["done"][0])
        assert not gone(left)
        with pytest.raises(DeadlineError, match=r"took more than 1 s to predict and was ended"):
            await driver.ask(do=text("hang_deaf"))
        assert (await driver.ask(do=text("nothing"))).cold
        return left

    left = drive(troubled, work, run_deadline_s=1.0)  # enough for a fork on a busy machine
    wait_until(lambda: gone(left), "what the predictor started has ended")


def test_a_request_that_waits_too_long_is_told_and_leaves_the_queue(troubled: Daemon) -> None:
    async def work(driver: Driver) -> None:
        busy = asyncio.ensure_future(driver.ask(do=text("hang")))
        line = (await driver.deployment()).key
        await until(lambda: driver.pool.state(line)["busy"])
        with pytest.raises(DeadlineError, match=r"no predictor of 'm' was free within 0.1 s"):
            await driver.ask(wait_s=0.1, do=text("nothing"))
        assert driver.pool.state(line)["queued"] == 0
        with pytest.raises(BusyError, match="wait already"):
            await asyncio.gather(*(driver.ask(wait_s=1, do=text("nothing")) for _ in range(3)))
        with pytest.raises(DeadlineError):
            await busy

    drive(troubled, work, queue=2, run_deadline_s=3.0)


def test_a_client_that_hangs_up_while_it_waits_is_forgotten(troubled: Daemon) -> None:
    async def work(driver: Driver) -> None:
        busy = asyncio.ensure_future(driver.ask(do=text("hang")))
        line = (await driver.deployment()).key
        await until(lambda: driver.pool.state(line)["busy"])
        waiting = asyncio.ensure_future(driver.ask(do=text("nothing")))
        await until(lambda: driver.pool.state(line)["queued"])
        waiting.cancel()
        await asyncio.wait([waiting])
        assert driver.pool.state(line)["queued"] == 0
        busy.cancel()

    drive(troubled, work)


def test_a_run_whose_client_hangs_up_ends_sooner_than_its_deadline(troubled: Daemon) -> None:
    async def work(driver: Driver) -> None:
        hanging = asyncio.ensure_future(driver.ask(do=text("hang")))
        line = (await driver.deployment()).key
        await until(lambda: driver.pool.state(line)["busy"])
        hanging.cancel()
        assert (await driver.ask(do=text("nothing"))).cold, "another predictor answers"
        assert driver.pool.counters["abandoned"] == 1
        assert driver.pool._runs == {}

    drive(troubled, work, run_deadline_s=3600.0)


# fault (endpoint): a hang-up as the run begins -> counted once
@pytest.mark.parametrize("clients", [1, 2])
def test_a_run_abandoned_while_it_begins_is_counted_and_ended_once(
    clients: int, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    predictor = {"call": "own_predictors:Slow", "max_batch_size": clients}
    register(daemon, checkpoint, predictor=predictor)

    async def work(driver: Driver) -> None:
        ended = 0
        first = await driver.ask(x=[[0.0]])
        assert first.cold
        (running,) = driver.pool._running.values()
        kill = running.process.kill

        def count(why: str) -> None:
            nonlocal ended
            ended += why.startswith("no client waits")
            kill(why)

        running.process.kill = count  # type: ignore[method-assign]
        running.stages = {"load_s": 0.0}
        deployment, tensors = await driver.deployment(), [from_array("x", np.array([[3600.0]]))]
        asked = [asyncio.ensure_future(driver.pool.infer(deployment, tensors)) for _ in range(clients)]
        await until(lambda: driver.pool.state(deployment.key)["busy"])
        for each in asked:  # the run was decided in this turn of the loop, and begins in the next one
            each.cancel()
        await asyncio.wait(asked)
        await running.process.ended
        await until(lambda: not driver.pool._runs)
        assert (driver.pool.counters["abandoned"], ended) == (1, 1)

    drive(daemon, work, run_deadline_s=3600.0)


def test_a_run_that_ends_soon_keeps_its_predictor_though_its_client_hung_up(troubled: Daemon) -> None:
    async def work(driver: Driver) -> None:
        await driver.ask(do=text("nothing"))
        (running,) = driver.pool._running.values()
        running.stages = {"load_s": 30.0}  # a new one would take so long
        short = asyncio.ensure_future(driver.ask(do=text("nap")))
        line = (await driver.deployment()).key
        await until(lambda: driver.pool.state(line)["busy"])
        short.cancel()
        assert not (await driver.ask(do=text("nothing"))).cold
        assert "abandoned" not in driver.pool.counters

    drive(troubled, work)


def test_a_run_is_finished_for_the_client_that_stays_and_where_settings_say_so(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(
        daemon, checkpoint, predictor={"call": "own_predictors:Napper", "max_batch_size": 2, "batch_delay_s": 10.0}
    )

    async def together(driver: Driver) -> None:
        both = [asyncio.ensure_future(driver.ask(x=[[float(number)]])) for number in range(2)]
        line = (await driver.deployment()).key
        await until(lambda: driver.pool.state(line)["busy"])
        both[0].cancel()
        assert arrays(await both[1])["x"].tolist() == [[1.0]]

    async def alone(driver: Driver) -> None:
        await together(driver)
        deployment = await driver.deployment()
        only = asyncio.ensure_future(driver.ask(x=[[1.0], [2.0]]))
        await until(lambda: driver.pool.state(deployment.key)["busy"])
        only.cancel()
        await until(lambda: not driver.pool.state(deployment.key)["busy"])
        assert driver.pool.state(deployment.key)["idle"] == 1
        assert "abandoned" not in driver.pool.counters

    drive(daemon, together)
    drive(daemon, alone, end_abandoned=False)


def test_a_model_that_cannot_be_loaded_tells_its_reason_to_all_who_ask(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, "broken", predictor={"call": "own_predictors:Unloadable"})
    register(daemon, checkpoint, "none", predictor={"call": "own_predictors:NotAPredictor"})
    register(daemon, checkpoint, "away", predictor={"call": "no_such_module:Class"})

    async def work(driver: Driver) -> None:
        asked = [driver.ask("broken", x=[1.0]) for _ in range(3)]
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, PredictorError)
            assert "could not load the model: RuntimeError: not today" in str(error)
        with pytest.raises(NotSupportedError, match="it needs the methods load, predict and unload"):
            await driver.ask("none", x=[1.0])
        with pytest.raises(NotSupportedError, match="install its package"):
            await driver.ask("away", x=[1.0])
        with pytest.raises(ModelNotFoundError):
            await driver.ask("unknown", x=[1.0])

    drive(daemon, work)


def test_a_request_without_a_descriptor_for_its_tensors_fails_alone(scaler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        await driver.ask(x=[1.0])
        deployment, tensors = (
            await driver.deployment(),
            [from_array("x", np.ones(1 << 18))],
        )  # more than the arena that is there
        with few_descriptors(left=0), pytest.raises(CapacityError, match=r"no descriptor left.*`ulimit -n`"):
            await driver.pool.infer(deployment, tensors)
        assert (await driver.pool.infer(deployment, tensors)).how == "running"

    drive(scaler, work)


def test_a_cold_request_without_descriptors_is_told_the_remedy(scaler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        deployment, tensors = await driver.deployment(), [from_array("x", np.ones(1))]
        with few_descriptors(left=0), pytest.raises(CapacityError, match=r"no descriptor left.*`ulimit -n`"):
            await driver.pool.infer(deployment, tensors)
        assert (await driver.ask(x=[1.0])).cold

    drive(scaler, work)


def test_more_rows_than_a_model_takes_at_once_are_refused(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Rows", "max_batch_size": 4})

    async def work(driver: Driver) -> None:
        with pytest.raises(CallerError, match=r"the request has 5 rows; 'm' takes 4 at once \(max_batch_size\)"):
            await driver.ask(x=np.zeros((5, 2)))
        assert driver.pool.counters == {}, "nothing was started for it"
        answer = await driver.ask(x=np.zeros((4, 2)))
        assert (answer.rows, answer.run_rows) == (4, 4)

    drive(daemon, work)


def test_requests_of_a_higher_priority_are_answered_first(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Slow", "priority_levels": 3})
    x = [from_array("x", np.array([0.0]))]

    async def work(driver: Driver) -> None:
        deployment = await driver.deployment()
        answered: list[int] = []

        async def ask(priority: int) -> None:
            await driver.pool.infer(deployment, x, priority=priority)
            answered.append(priority)

        asked = [asyncio.ensure_future(ask(priority)) for priority in (3, 0, 1, 2, 1)]  # 0: the default, which is 2
        await asyncio.gather(*asked)
        assert answered == [1, 1, 0, 2, 3]
        with pytest.raises(CallerError, match="is 4; 'm' has the levels 1 to 3"):
            await ask(4)

    drive(daemon, work)


def test_steps_run_on_requests_that_were_joined_and_each_gets_its_own_rows(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    count = "def step(context, data): return {'x': data['x'].astype(str).astype(float)[:, None].repeat(2, 1)}\n"
    told = "def step(context, data): return {**data, 'seen': [len(context.given['x'])] * len(data['x'])}\n"
    refused = "from trims.errors import CallerError\ndef step(context, data):\n    if b'bad' in data['x']:\n"
    refused += "        raise CallerError('x is bad')\n    return data\n"
    register(
        daemon, checkpoint, predictor={"call": "own_predictors:Rows", "max_batch_size": 8, "batch_delay_s": 0.2},
        inputs=[{"name": "x", "dtype": "BYTES", "shape": [-1]}], preprocess=[{"source": refused}, {"source": count}],
        postprocess=[{"source": told}],
    )  # fmt: skip
    texts = ([b"1"], [b"2", b"22"], [b"bad"], [b"3"] * 3)

    async def work(driver: Driver) -> list[Answer | BaseException]:
        await driver.ask(x=np.array([b"0"] * 8, dtype=object))
        asked = (driver.ask(x=np.array(each, dtype=object)) for each in texts)
        return await asyncio.gather(*asked, return_exceptions=True)

    one, two, bad, three = drive(daemon, work)
    assert isinstance(bad, CallerError)
    assert arrays(one)["x"].tolist() == [[1.0, 1.0]]
    assert arrays(two)["x"].tolist() == [[2.0, 2.0], [22.0, 22.0]]
    assert arrays(three)["x"].tolist() == [[3.0, 3.0]] * 3
    assert arrays(three)["seen"].tolist() == [3] * 3, "the others were run alone after the refusal"


def test_requests_leave_one_timer_for_the_keep_alive_of_their_predictor(
    scaler: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(driver: Driver) -> list[asyncio.TimerHandle]:
        loop, made = asyncio.get_running_loop(), []
        call_later = loop.call_later

        def noted(delay: float, *given: Any, **context: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, *given, **context)
            made.extend([timer] if delay == KEEP_ALIVE_S else [])
            return timer

        monkeypatch.setattr(loop, "call_later", noted)
        for _ in range(5):
            await driver.ask(x=[1.0])
        line = (await driver.deployment()).key
        await until(lambda: driver.pool.state(line)["idle"])
        assert len(made) >= 5
        assert len([timer for timer in made if not timer.cancelled()]) == 1
        return made

    left = drive(scaler, work, keep_alive_s=KEEP_ALIVE_S)
    assert all(timer.cancelled() for timer in left), "a predictor that has ended leaves no timer"


def test_inputs_may_be_written_to_and_the_next_request_does_not_see_it(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scribbler"})

    async def work(driver: Driver) -> None:
        for _ in range(3):
            assert arrays(await driver.ask(x=[1.0, 2.0]))["x"].tolist() == [2.0, 3.0]

    drive(daemon, work)


def test_a_closed_pool_takes_no_requests_and_leaves_no_process(troubled: Daemon) -> None:
    async def work(driver: Driver) -> int:
        pid = int(arrays(await driver.ask(do=text("nothing")))["done"][0])
        hanging = asyncio.ensure_future(driver.ask(do=text("hang")))
        await until(lambda: any(running.jobs for running in driver.pool._running.values()))
        await driver.pool.close(0.1)
        with pytest.raises(DrainingError, match="the endpoint ended before the request was answered; send it again"):
            await hanging
        with pytest.raises(DrainingError):
            await driver.ask(do=text("nothing"))
        return pid

    pid = drive(troubled, work)
    wait_until(lambda: gone(pid), "the predictor has ended")


def test_a_predictor_outlives_its_template_and_the_next_has_another(troubled: Daemon) -> None:
    async def work(driver: Driver) -> None:
        before = arrays(await driver.ask(do=text("nothing")))["done"]
        (template,) = driver.pool._warm_pool._inventory.templates.values()
        os.kill(template.pid, signal.SIGKILL)
        await until(lambda: template.lost is not None)
        assert arrays(await driver.ask(do=text("nothing")))["done"] == before
        os.kill(int(before[0]), signal.SIGKILL)
        await until(lambda: driver.pool.counters.get("ended") == 1)
        answer = await driver.ask(do=text("nothing"))
        assert (answer.cold, answer.how) == (True, "forked")

    drive(troubled, work)


def test_a_predictor_that_was_expected_answers_the_request_that_comes(scaler: Daemon) -> None:
    async def work(driver: Driver) -> None:
        deployment, came = await driver.deployment(), time.perf_counter()
        tensors = [from_array("x", np.array([1.0]))]
        driver.pool.expect(deployment, tensors)
        await until(lambda: driver.pool.state(deployment.key)["idle"])
        answer = await driver.pool.infer(deployment, tensors, began_s=came)
        assert arrays(answer)["y"].tolist() == [3.0]
        assert answer.cold, "it was started after the request had come"
        assert answer.stages["queue_s"] > answer.stages["load_s"]

    drive(scaler, work)


def test_no_predictor_is_expected_for_what_would_be_refused_or_end_at_once(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    inputs = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=inputs)

    async def work(driver: Driver) -> None:
        deployment = await driver.deployment()
        driver.pool.expect(deployment, [from_array("z", np.array([1.0]))])
        driver.pool.expect(dataclasses.replace(deployment, keep_alive_s=0.0), [from_array("x", np.array([1.0]))])
        assert driver.pool.state(deployment.key)["starting"] == 0
        driver.pool.expect(deployment, [from_array("x", np.array([1.0]))])
        assert driver.pool.state(deployment.key)["starting"] == 1

    drive(daemon, work)


def test_a_slot_that_is_needed_before_its_process_is_there_is_given_up(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    for name in ("m", "n"):
        register(daemon, checkpoint, name, predictor={"call": "own_predictors:Scaler"})

    async def work(driver: Driver) -> None:
        warm_pool, come = driver.pool._warm_pool, asyncio.Event()
        take = warm_pool.take

        async def slowly(environment: Environment) -> PredictorProcess:
            await come.wait()
            return await take(environment)

        warm_pool.take = slowly  # type: ignore[method-assign]
        left = asyncio.ensure_future(driver.ask("m", x=[1.0]))
        deployment = await driver.deployment("m")
        await until(lambda: driver.pool.state(deployment.key)["starting"])
        left.cancel()
        other = asyncio.ensure_future(driver.ask("n", x=[1.0]))
        await until(lambda: not driver.pool.state(deployment.key)["starting"])
        come.set()
        assert arrays(await other)["y"].tolist() == [2.0]

    drive(daemon, work, predictors=1)


def test_a_closing_pool_that_is_closed_again_ends_what_runs_now(troubled: Daemon) -> None:
    async def work(driver: Driver) -> None:
        await driver.ask(do=text("nothing"))
        hanging = asyncio.ensure_future(driver.ask(do=text("hang")))
        while not driver.pool.state((await driver.deployment()).key)["busy"]:
            await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(driver.pool.close(3600.0))
        await asyncio.sleep(0.05)
        assert not hanging.done()
        await driver.pool.close(0.0)
        with pytest.raises(DrainingError, match="send it again"):
            await hanging
        await closing

    drive(troubled, work)


def test_the_context_of_a_run_is_that_of_its_first_request(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    predictor = {"function": "own_functions:tell_context", "max_batch_size": 2, "batch_delay_s": 60.0}
    register(daemon, checkpoint, predictor=predictor)
    begun: list[str] = []

    def begin(name: str, came_s: float, batch: int) -> BegunRun:
        assert came_s <= time.perf_counter()
        begun.append(name)
        assert batch == 2
        return None, {"traceparent": name}, lambda error: begun.append(str(error))

    async def work(driver: Driver) -> None:
        deployment, tensors = await driver.deployment(), [from_array("x", np.zeros(1))]
        requests = [
            driver.pool.infer(deployment, tensors, begin_run=functools.partial(begin, name))
            for name in ("first", "second")
        ]
        for answer in await asyncio.gather(*requests):
            assert answer.batch == 2
            assert arrays(answer)["traceparent"].tolist() == [b"first"]
        assert begun == ["first", "second"]
        alone, _ = await asyncio.gather(driver.ask(x=[0.0]), driver.ask(x=[0.0]))
        assert arrays(alone)["traceparent"].tolist() == [b""], "a run without a context has none of an earlier one"

    drive(daemon, work)


# -- processors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predictor", "expected"),
    [
        ({}, [4, 2, 1, 4]),
        ({"threads": 3}, [3, 3, 3, 3]),
        ({"options": {"own": 3}}, [3, 3, 3, 3]),
        ({"options": {"own": 4}}, [4, 4, 4, 4]),
        ({"call": "own_threads:Threads"}, [3, 3, 3, 3]),
    ],
    ids=["by default", "stated in the manifest", "set by the code", "set to what is there", "set at import"],
)
def test_runs_at_once_divide_the_processors_unless_threads_are_chosen(
    daemon: Daemon, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    predictor: dict[str, Any], expected: list[int],
) -> None:  # fmt: skip
    monkeypatch.setattr("trims_predictors.deployment.deployments.processors", lambda: 4)
    monkeypatch.setattr("trims_predictors.deployment.cpu_shares._JUST_S", -1.0)  # the last run is alone
    stated = {"call": "own_predictors:Threads", "instances": 3, **predictor}
    register(daemon, checkpoint, framework={"name": "torch"}, predictor=stated)
    there, later = tmp_path, tmp_path / "later"

    async def work(driver: Driver) -> list[int]:
        line = (await driver.deployment()).key
        asked = []
        for running in (1, 2, 3):
            asked.append(asyncio.ensure_future(driver.ask(until=text(str(later)))))
            await until(lambda running=running: driver.pool.state(line)["busy"] >= running)
        later.touch()
        answers = [*(await asyncio.gather(*asked)), await driver.ask(until=text(str(there)))]
        return [int(arrays(answer)["threads"][0]) for answer in answers]

    assert drive(daemon, work) == expected


@pytest.mark.parametrize(("at_most_s", "expected"), [(60.0, 2), (0.0, 4)])
def test_a_model_that_loads_has_its_share_but_not_while_it_waits_for_its_weights(
    daemon: Daemon, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    at_most_s: float, expected: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("trims_predictors.deployment.deployments.processors", lambda: 4)
    monkeypatch.setattr("trims_predictors.deployment.cpu_shares._LOADS_S", at_most_s)
    options = {"loads": {"until": str(tmp_path / "later")}, "runs": {}}
    for name, given in options.items():
        stated = {"call": "own_predictors:Threads", "options": given}
        register(daemon, checkpoint, name, framework={"name": "torch"}, predictor=stated)
    later = text(str(tmp_path))

    async def work(driver: Driver) -> int:
        asked = asyncio.ensure_future(driver.ask("loads", until=later))
        line = (await driver.deployment("loads")).key
        await until(lambda: driver.pool._running and driver.pool.state(line)["starting"] == 1)
        await asyncio.sleep(0.1)
        answer = await driver.ask("runs", until=later)
        (tmp_path / "later").touch()
        await asked
        return int(arrays(answer)["threads"][0])

    assert drive(daemon, work) == expected


# fault (templates): no descriptor or process for a predictor -> idle ones end, else `capacity` with the remedy
def test_an_idle_predictor_ends_for_another_model_for_which_no_descriptor_is_left(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second", "third"):
        register(daemon, checkpoint, name, predictor={"call": "own_predictors:Scaler"})

    async def work(driver: Driver) -> None:
        for name in ("first", "second"):
            await driver.ask(name, x=[1.0])
        take = driver.pool._warm_pool.take

        async def lacking(environment: Environment) -> PredictorProcess:
            if not driver.pool.counters.get("ended"):
                raise CapacityError("no descriptor left")
            return await take(environment)

        monkeypatch.setattr(driver.pool._warm_pool, "take", lacking)
        assert arrays(await driver.ask("third", x=[1.0]))["y"].tolist() == [2.0]
        states = [
            driver.pool.state((await driver.deployment(name)).key)["idle"] for name in ("first", "second", "third")
        ]
        assert states == [0, 1, 1], "the one that has been idle longest ends"

    drive(daemon, work)


def test_a_lack_of_descriptors_is_told_if_no_predictor_is_idle(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})

    async def work(driver: Driver) -> None:
        async def lacking(environment: Environment) -> PredictorProcess:
            raise CapacityError(f"no descriptor left for {environment.framework}")

        monkeypatch.setattr(driver.pool._warm_pool, "take", lacking)
        with pytest.raises(CapacityError, match="no descriptor left for numpy"):
            await driver.ask(x=[1.0])

    drive(daemon, work)


def test_a_spare_that_was_killed_is_not_counted(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})

    async def work(driver: Driver) -> None:
        await driver.ask(x=[1.0])
        await until(lambda: driver.pool.report()["spares"] == {"numpy": 1})
        ((spare,),) = driver.pool._warm_pool._inventory.spares.values()
        os.kill(spare.pid, signal.SIGKILL)
        await spare.ended
        assert sum(driver.pool.report()["spares"].values()) == 0

    drive(daemon, work, spares=1)
