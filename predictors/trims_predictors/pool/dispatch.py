"""One run of a predictor: requests go there together, and each gets its part of the answer."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import DeadlineError, PredictorError, TrimsError
from trims.logs import facts
from trims.trace.spans import Within
from trims_predictors.deployment.deployment import Answer
from trims_predictors.pool.batching import join, split
from trims_predictors.tensors import check_outputs

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims.trace.context import SpanContext
    from trims.wire.frames import Message
    from trims_predictors.children.worker_process import OnPart, PredictorProcess
    from trims_predictors.deployment.cpu_shares import Computing
    from trims_predictors.deployment.deployment import Deployment, Settings
    from trims_predictors.pool.events import Job
    from trims_predictors.tensors import Tensor

    #: Context of a run's span, what the predictor's code finds of it, and what ends it with an error.
    BegunRun = tuple[SpanContext | None, Mapping[str, str] | None, Callable[[BaseException], None]]
    #: Begins the span of a run, by when its request came and how many requests are in it (`RequestSpan.begin_run`).
    BeginRun = Callable[[float, int], BegunRun]


_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Request:
    """Request of one client.

    Attributes:
        answer: Done once it is answered, or cannot be.
        began_s: When it came, on the clock of `time.perf_counter`.
        keep_alive_s: Seconds that its predictor stays afterwards; None: what the model says.
        begin_run: Called when a predictor begins to answer it.
        wanted: Names of the outputs that it asks for; empty for all.
        on_part: Takes parts of the answer as they come; None if none are wanted. Such a request runs alone.
        only_load: Whether it wants a predictor that has loaded the model, and no run.
        id: Name of the request in the log.
        queued_s: When it was put into the queue, on the clock of `time.perf_counter`.
    """

    deployment: Deployment
    tensors: Sequence[Tensor]
    answer: asyncio.Future[Answer]
    began_s: float
    keep_alive_s: float | None
    begin_run: BeginRun | None
    wanted: Sequence[str] = ()
    on_part: OnPart | None = None
    only_load: bool = False
    id: str = field(default_factory=lambda: str(facts().get("request", "")))
    queued_s: float = field(default_factory=time.perf_counter)


@dataclass(eq=False, slots=True)
class Running:
    """A predictor that is loading or has loaded its model.

    Attributes:
        began_s: When it was asked for, on the clock of `time.perf_counter`.
        warm: Whether the weights were there before.
        stages: Seconds that the parts of its start took.
        keep_alive_s: What the last request said of it.
        stops: A run of it ends early if it is asked to.
        jobs: Jobs of the run that is under way.
        run_began_s: When that run began, on the clock of `time.perf_counter`.
        shortest_s: Seconds of its shortest run; infinite before one has ended.
        abandoned_timer: Ends it if its run goes on, for which no client waits; None if one does.
        idle_timer: Ends it if it stays idle; of the last idle time only, or each request would leave one for minutes.
    """

    deployment: Deployment
    process: PredictorProcess
    how: str
    began_s: float
    place: str = ""
    warm: bool = False
    stages: dict[str, float] = field(default_factory=dict)
    keep_alive_s: float | None = None
    stops: bool = False
    jobs: Sequence[Job] = ()
    run_began_s: float = 0.0
    shortest_s: float = math.inf
    threads: int = 0
    abandoned_timer: asyncio.TimerHandle | None = None
    idle_timer: asyncio.TimerHandle | None = None

    def end_run(self) -> None:
        """Forget the jobs of the run that has ended. Idempotent."""
        self.jobs = ()
        if self.abandoned_timer is not None:
            self.abandoned_timer.cancel()
            self.abandoned_timer = None

    def forget_idle(self) -> None:
        """The idle time that was watched is over."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None


class Runs:
    """Dispatcher that has predictors answer jobs, whose payloads are requests.

    Args:
        computing: Predictors that compute now, and share the processors.
        ran: Called for each run with the deployment, the predictor's answer and how long it took, in seconds.
        fail: Reports an error to a job's client.
        saw: Called for each run, with the deployment, the inputs of a request, and the outputs if all are wanted.
    """

    def __init__(
        self,
        settings: Settings,
        computing: Computing,
        ran: Callable[[Deployment, Message, float], None],
        fail: Callable[[Job, TrimsError], None],
        saw: Callable[[Deployment, Sequence[Tensor], Sequence[Tensor]], None] = lambda *_: None,
    ) -> None:
        self._settings = settings
        self._computing = computing
        self._ran = ran
        self._fail = fail
        self._saw = saw

    async def run(self, running: Running, jobs: Sequence[Job]) -> None:
        """Answer all jobs, with an error where it must be. If they fail together, each is tried alone."""
        if jobs[0].payload.only_load:  # and so are the others, which are of its group
            for job in jobs:
                _answer(running, job.payload, [], {}, batch=len(jobs))
            return
        try:
            await self._run_together(running, jobs)
        except TrimsError as error:
            if len(jobs) == 1 or running.process.dying:
                for job in jobs:
                    self._fail(job, error)
            else:  # one of them may be to blame: the others are answered
                for job in jobs:
                    await self._run_alone(running, job)

    async def _run_alone(self, running: Running, job: Job) -> None:
        try:
            await self._run_together(running, [job])
        except TrimsError as error:
            self._fail(job, error)

    async def _run_together(self, running: Running, jobs: Sequence[Job]) -> None:
        began, deployment = time.perf_counter(), running.deployment
        requests: list[Request] = [job.payload for job in jobs]
        running.process.answers(requests[0].id)
        deadline_s = deployment.run_deadline_s
        threads = running.threads = deployment.threads_of(len(self._computing))
        runs = [each.begin_run(each.began_s, len(jobs)) for each in requests if each.begin_run is not None]
        recorded = next((own for own, *_ in runs if own is not None), None) if runs else None
        context = next((headers for _, headers, _ in runs if headers), None) if runs else None
        wanted = list(requests[0].wanted)  # as of all: others do not run together
        on_part = requests[0].on_part
        message = {
            "op": "predict", "threads": threads, **({"wanted": wanted} if wanted else {}),
            **({"stream": True} if on_part is not None else {}), **({"context": dict(context)} if context else {}),
        }  # fmt: skip
        field = "`deadline_s` in the `predictor` of its manifest"
        remedy = f"state a longer {field}" if deadline_s else f"raise --run-deadline-s, or state {field}"
        try:
            with Within(recorded), naming(deployment, remedy):
                answer = await running.process.ask(
                    message,
                    deadline_s=self._settings.run_deadline_s if deadline_s is None else deadline_s,
                    tensors=join([request.tensors for request in requests]),
                    on_part=on_part,
                )
            stated = [each for each in deployment.outputs if not wanted or each.name in wanted]
            check_outputs(answer["outputs"], stated, deployment.model)
            outputs = split(answer["outputs"], [job.rows for job in jobs])
        except BaseException as error:  # now: each request may wait for a run of its own, which takes longer
            for _, _, fail in runs:
                fail(error)
            raise
        run_s = time.perf_counter() - began
        self._ran(deployment, answer, run_s)
        self._saw(deployment, requests[0].tensors, [] if wanted else answer["outputs"])
        for request in requests if _log.isEnabledFor(logging.DEBUG) else ():
            known = {"model": deployment.model, "request": request.id}
            _log.debug("run by process %d in %.1f ms", running.process.pid, run_s * 1000, extra={"facts": known})
        if running.process.pages is not None and "pages" in answer:
            running.process.pages.learn(deployment.key, answer["pages"])
        rows = [job.rows for job in jobs]
        for request, mine, own in zip(requests, outputs, rows, strict=True):
            stages = {"queue_s": began - request.began_s, **answer["stages"], "run_s": run_s}
            _answer(running, request, mine, stages, batch=len(jobs), rows=own, run_rows=sum(rows))


def _answer(
    running: Running, request: Request, outputs: list[Tensor], stages: Mapping[str, float], **counts: int
) -> None:
    """Answer a request; `counts` are what an `Answer` has of its batch."""
    if request.answer.done():
        return
    cold = running.began_s >= request.began_s
    start = running.stages if cold else {}
    how = running.how if cold else "running"
    stages = {**start, **stages}
    answer = Answer(outputs, cold, how, running.place, running.warm, stages=stages, **counts)
    request.answer.set_result(answer)


def runs_within(trace: SpanContext) -> BeginRun:
    """Return what begins the runs of a request that is a part of its caller's span, and has no span of its own."""
    return lambda *_: (trace, None, lambda _: None)


def with_rest(stages: Mapping[str, float], began_s: float) -> dict[str, float]:
    """Return the phases of a load that has just ended, with what none of them accounts for as `unattributed_s`.

    Args:
        stages: Seconds of each phase.
        began_s: When the load began, on the clock of `time.perf_counter`.
    """
    return {**stages, "unattributed_s": max(0.0, time.perf_counter() - began_s - sum(stages.values()))}


@contextlib.contextmanager
def naming(deployment: Deployment, remedy: str) -> Iterator[None]:
    """Have what a predictor failed at name its model, and what helps if it was too late."""
    try:
        yield
    except DeadlineError as error:
        raise DeadlineError(f"{deployment.model}: {error}; {remedy}") from error
    except PredictorError as error:
        raise PredictorError(f"{deployment.model}: {error}", raised=error.raised) from error
