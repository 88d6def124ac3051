"""Requests that run together share a run and nothing else: one that is to blame costs the others no answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment.cpu_shares import Computing
from trims_predictors.deployment.deployment import Deployment, Settings
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.pool.dispatch import Request, Running, Runs, naming
from trims_predictors.pool.events import Job
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import CallerError, DeadlineError, PredictorError
from trims.manifests.serving import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_predictors.pool.dispatch import BegunRun

    from trims.core.errors import TrimsError

PLAN = Deployment(DeploymentKey("m", "1"), "m", "1.0.0", "a:B", Environment("numpy"), batch=8)


class Process:
    """Doubles `x`; refuses a run in which a number is negative, and ends at one that is 666."""

    pages = None
    dying = False

    def __init__(self) -> None:
        self.runs: list[Mapping[str, Any]] = []
        self.requests: list[str] = []

    def answers(self, request: str) -> None:
        self.requests.append(request)

    async def ask(self, message: Mapping[str, Any], *, deadline_s: float, tensors: Any, on_part: Any) -> Any:
        assert (on_part is not None) == bool(message.get("stream"))
        self.runs.append({**message, "deadline_s": deadline_s})
        (x,) = map(to_array, tensors)
        if (x == 666).any():
            self.dying = True
            raise PredictorError("it ended")
        if (x < 0).any():
            raise CallerError("a number is negative")
        return {"outputs": [from_array("y", 2 * x)], "stages": {"predict_s": 0.5}}


class Bench:
    """Runs of one process, and what came of their jobs."""

    def __init__(self, deployment: Deployment = PLAN) -> None:
        self.process: Any = Process()
        self.running = Running(deployment, self.process, "forked", began_s=1.0, place="cpu", stages={"load_s": 2.0})
        self.failed: list[tuple[Job, TrimsError]] = []
        self.told: list[Any] = []
        self.spans: list[str] = []
        self._runs = Runs(
            Settings("", run_deadline_s=60.0),
            Computing(),
            lambda *given: self.told.append(given),
            lambda job, error: self.failed.append((job, error)),
        )

    def job(
        self,
        *numbers: float,
        began_s: float = 2.0,
        context: Mapping[str, str] | None = None,
        wanted: Sequence[str] = (),
    ) -> Job:
        tensors = [from_array("x", np.array(numbers))]
        begin = None if context is None else partial(self.begin, context)
        answer = asyncio.get_running_loop().create_future()
        request = Request(self.running.deployment, tensors, answer, began_s, None, begin, wanted)
        return Job(self.running.deployment.key, len(numbers), payload=request)

    def begin(self, context: Mapping[str, str], came_s: float, batch: int) -> BegunRun:
        number = len(self.spans)
        self.spans.append(f"begin {number} of {batch}")
        return None, context, lambda error: self.spans.append(f"end {number}: {type(error).__name__}")

    async def run(self, *jobs: Job) -> list[list[float] | None]:
        await self._runs.run(self.running, jobs)
        answers = [job.payload.answer for job in jobs]
        return [to_array(each.result().outputs[0]).tolist() if each.done() else None for each in answers]


def test_each_request_gets_its_own_rows_of_a_run() -> None:
    async def work() -> None:
        bench = Bench()
        jobs = [bench.job(1), bench.job(2, 3)]
        assert await bench.run(*jobs) == [[2.0], [4.0, 6.0]]
        assert [job.payload.answer.result().batch for job in jobs] == [2, 2]
        assert len(bench.process.runs) == 1
        assert bench.process.requests == [jobs[0].payload.id], "lines that it prints are about that request"
        assert [deployment for deployment, _, _ in bench.told] == [PLAN]

    asyncio.run(work())


def test_a_request_that_is_refused_costs_those_beside_it_nothing_but_a_run() -> None:
    async def work() -> None:
        bench = Bench()
        jobs = [bench.job(1), bench.job(-1), bench.job(3)]
        assert await bench.run(*jobs) == [[2.0], None, [6.0]]
        assert [(job, str(error)) for job, error in bench.failed] == [(jobs[1], "a number is negative")]

    asyncio.run(work())


def test_the_spans_of_a_run_that_fails_end_before_its_requests_run_alone() -> None:
    async def work() -> None:
        bench = Bench()
        await bench.run(bench.job(1, context={"traceparent": "00-1"}), bench.job(-1, context={}))
        assert bench.spans == [
            "begin 0 of 2", "begin 1 of 2", "end 0: CallerError", "end 1: CallerError", "begin 4 of 1",
            "begin 5 of 1", "end 5: CallerError",
        ]  # fmt: skip

    asyncio.run(work())


def test_an_answer_that_is_none_ends_the_span_of_its_run_with_an_error() -> None:
    async def work() -> None:
        bench = Bench(replace(PLAN, outputs=(TensorType("z", "FP64", (-1,)),)))
        await bench.run(bench.job(1, context={}))
        assert bench.spans == ["begin 0 of 1", "end 0: PredictorError"]

    asyncio.run(work())


def test_requests_of_a_predictor_that_ends_are_not_tried_alone() -> None:
    async def work() -> None:
        bench = Bench()
        jobs = [bench.job(1), bench.job(666)]
        assert await bench.run(*jobs) == [None, None]
        assert [job for job, _ in bench.failed] == jobs
        assert {str(error) for _, error in bench.failed} == {"m: it ended"}
        assert len(bench.process.runs) == 1

    asyncio.run(work())


def test_an_answer_tells_of_a_start_that_its_request_has_waited_for() -> None:
    async def work() -> None:
        bench = Bench()
        waited, later = bench.job(1, began_s=0.5), bench.job(1, began_s=1.5)
        await bench.run(waited, later)
        cold, warm = waited.payload.answer.result(), later.payload.answer.result()
        assert (cold.cold, cold.how, cold.stages["load_s"]) == (True, "forked", 2.0)
        assert (warm.cold, warm.how, "load_s" in warm.stages) == (False, "running", False)
        assert {"queue_s", "predict_s", "run_s"} <= warm.stages.keys()

    asyncio.run(work())


def test_a_client_that_has_hung_up_is_told_nothing() -> None:
    async def work() -> None:
        bench = Bench()
        gone, other = bench.job(1), bench.job(2)
        gone.payload.answer.cancel()
        await bench._runs.run(bench.running, [gone, other])
        assert other.payload.answer.done()

    asyncio.run(work())


@pytest.mark.parametrize(("stated", "expected"), [(None, 60.0), (5.0, 5.0)])
def test_a_run_has_the_time_that_the_manifest_states_and_the_trace_of_a_request(
    stated: float | None, expected: float
) -> None:
    async def work() -> None:
        bench = Bench(
            Deployment(
                DeploymentKey("m", "1"), "m", "1.0.0", "a:B", Environment("numpy"), run_deadline_s=stated, threads=2
            )
        )
        await bench.run(bench.job(1, context={"traceparent": "00-1"}))
        (run,) = bench.process.runs
        assert run == {"op": "predict", "threads": 2, "context": {"traceparent": "00-1"}, "deadline_s": expected}

    asyncio.run(work())


def test_an_answer_that_is_not_what_the_manifest_states_is_the_predictor_s_fault() -> None:
    async def work() -> None:
        bench = Bench(
            Deployment(
                DeploymentKey("m", "1"),
                "m",
                "1",
                "a:B",
                Environment("numpy"),
                outputs=(TensorType("z", "FP64", (-1,)),),
            )
        )
        assert await bench.run(bench.job(1)) == [None]
        ((_, error),) = bench.failed
        assert isinstance(error, PredictorError)
        assert "'z'" in str(error)

    asyncio.run(work())


def test_a_predictor_that_is_too_late_is_told_with_its_model_and_a_remedy() -> None:
    with pytest.raises(DeadlineError, match="m: it took too long; ask again"), naming(PLAN, "ask again"):
        raise DeadlineError("it took too long")
    with pytest.raises(PredictorError, match=r"^m: it failed$"), naming(PLAN, "ask again"):
        raise PredictorError("it failed")


def test_an_idle_time_that_is_over_is_watched_no_more() -> None:
    async def work() -> None:
        bench, ended = Bench(), []
        bench.running.idle_timer = asyncio.get_running_loop().call_later(0, ended.append, time)
        for _ in range(2):
            bench.running.forget_idle()
        await asyncio.sleep(0.01)
        assert ended == []

    asyncio.run(work())


def test_a_run_is_for_the_outputs_that_its_requests_want() -> None:
    async def work() -> None:
        bench = Bench(replace(PLAN, outputs=(TensorType("y", "FP64", (-1,)), TensorType("z", "FP64", (-1,)))))
        assert await bench.run(bench.job(1.0, wanted=["y"])) == [[2.0]], "z is stated, and not wanted"
        bench.running.deployment = PLAN
        await bench.run(bench.job(1, wanted=["y"]), bench.job(2, wanted=["y"]))
        await bench.run(bench.job(1), bench.job(2))
        assert [run.get("wanted") for run in bench.process.runs] == [["y"], ["y"], None]

    asyncio.run(work())
