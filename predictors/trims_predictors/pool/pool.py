"""Worker pool: predictors of all models. Carries out what `scheduler` decides and reports results to it.

One event loop, no threads of its own. A request waits in its model's key, is answered by a predictor in one run, alone
or in a batch, and learns which stages took how long. Not covered: what a model is (`deployments`), and protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, CapacityError, DeadlineError, DrainingError, PredictorError, TrimsError
from trims.trace.context import current
from trims.trace.spans import span
from trims_predictors.children.launcher import Environment, Launcher
from trims_predictors.deployment.cpu_shares import Computing, processors
from trims_predictors.deployment.deployment import is_device, load_message
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.deployment.loading import load
from trims_predictors.deployment.signatures import Signatures
from trims_predictors.ipc.os_errors import as_trims_error
from trims_predictors.pool.batching import rows_of
from trims_predictors.pool.dispatch import Request, Running, Runs, naming, runs_within, with_rest
from trims_predictors.pool.events import Fail, Job, Limits, Run, Start, Step, Stop
from trims_predictors.pool.growth import SURPLUS_KEEP_ALIVE_S, Grower
from trims_predictors.pool.load_failures import Failures
from trims_predictors.pool.scheduler import Schedule
from trims_predictors.tasks import Background
from trims_predictors.tensors import check_against
from trims_predictors.warm.ahead import Ahead
from trims_predictors.warm.device_spares import DeviceSpares
from trims_predictors.warm.hot_spares import HotSpares
from trims_predictors.warm.reclaim_policy import Limits as TemplateLimits
from trims_predictors.warm.warm_pool import WarmPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.trace.context import SpanContext
    from trims.trace.span import AnySpan
    from trims.wire.frames import Message
    from trims_predictors.children.worker_process import OnPart, PredictorProcess
    from trims_predictors.deployment.deployment import Answer, Deployment, Settings
    from trims_predictors.deployment.signatures import Keep
    from trims_predictors.pool.dispatch import BeginRun
    from trims_predictors.tensors import Tensor

    OnLoad = Callable[[Deployment, str, Mapping[str, float]], None]

_log = logging.getLogger(__name__)
#: Seconds after an answer, in which the same client often asks again.
_AFTERWARDS_S = 0.2
#: Level of orders to load: before every level that a request can have.
_FIRST = -1


class WorkerPool:
    """See the module. Made and used in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._slots = Schedule(settings.predictors, settings.of_tenants)
        self._launcher = Launcher(settings.runtime_dir, settings.isolation, plain=settings.plain_output)
        self._warm_pool = WarmPool(
            self._launcher,
            spares=settings.spares,
            threads=processors(),
            busy=self._is_busy,
            limits=TemplateLimits(settings.template_keep_alive_s, settings.most_template_bytes),
            learned=settings.learned,
        )
        self.hot = HotSpares(self._warm_pool, settings, self._count)
        self.on_devices = DeviceSpares(self._warm_pool, settings, self.hot.rehearsals, self.hot.images)
        self.ahead = Ahead(self._warm_pool, settings)
        self._running: dict[int, Running] = {}
        #: Predictors whose process is just being had, and that are wanted.
        self._coming: set[int] = set()
        self._runs: dict[Job, int] = {}  # what runs, and where
        self._grower = Grower(self._slots, self._running, self._do, settings)
        self._computing = Computing(self._share)
        self._runner = Runs(settings, self._computing, self.hot.ran, self._fail, self._saw)
        self._deployments: dict[DeploymentKey, Deployment] = {}
        #: Spans of the latest recorded request of each deployment, of which a predictor's start is a part.
        self._traces: dict[DeploymentKey, SpanContext] = {}
        self.signatures = Signatures()
        self.keep: Keep | None = None  # of what the first run of a model had, beyond the life of this pool
        self.on_load: OnLoad | None = None  # given the deployment, the place, and the seconds of each phase
        #: Reasons why models could not be loaded.
        self.failures = Failures()
        self._background = Background("the pool")
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._grace_until_s = 0.0
        self._killing = False
        #: Requests that wait or run, and when the last one ended.
        self._asked = 0
        self._answered_s = 0.0
        #: Predictors that were started, by how, and those that ended.
        self.counters: dict[str, int] = {}

    # -- requests --------------------------------------------------------------------------------------------------

    async def infer(
        self,
        deployment: Deployment,
        tensors: Sequence[Tensor],
        *,
        queue_deadline_s: float | None = None,
        keep_alive_s: float | None = None,
        priority: int = 0,
        began_s: float | None = None,
        begin_run: BeginRun | None = None,
        wanted: Sequence[str] = (),
        on_part: OnPart | None = None,
    ) -> Answer:
        """Answer one request.

        Args:
            tensors: The inputs, checked here.
            queue_deadline_s: Seconds to wait for a predictor.
            keep_alive_s: Seconds that the predictor stays after this request; None: what the model says.
            priority: Level among those of the model, 1 for the first; 0: the model's default.
            began_s: When the request came, on the clock of `time.perf_counter`; None: now.
            begin_run: Called when a predictor begins to answer it; returns the run's context for the predictor.
            wanted: Names of the outputs that it asks for; empty for all. The answer may have others as well.
            on_part: Takes parts of the answer before it, if the predictor has parts; None for none.

        Raises:
            CallerError: The inputs do not fit the model, or the predictor refuses them.
            BusyError: Too many requests wait for the model.
            DeadlineError: No predictor was free in time, or the run took too long.
            PredictorError: The predictor's code or process failed.
            TrimsError: The model cannot be loaded: what the daemon says.
        """
        if self._closing:
            raise DrainingError("the endpoint is ending and takes no new requests")
        check_against(tensors, self.signatures.of(deployment)[0], deployment.model)
        began_s = time.perf_counter() if began_s is None else began_s
        if begin_run is None and (trace := current.get()) is not None:
            begin_run = runs_within(trace)
        answer = self._loop.create_future()
        request = Request(deployment, tensors, answer, began_s, keep_alive_s, begin_run, wanted, on_part)
        job = self._job(request, deployment.level_of(priority))
        return await self._answer(job, queue_deadline_s)

    async def load(self, deployment: Deployment) -> None:
        """Have a predictor of the model that has loaded it, as its next request finds it; requests do not go before.

        Raises as `infer` does.
        """
        if self._closing:
            raise DrainingError("the endpoint is ending and loads no models")
        request = Request(deployment, (), self._loop.create_future(), time.perf_counter(), None, None, only_load=True)
        # No group: every request that may run together with others has one.
        await self._answer(Job(deployment.key, payload=request, level=_FIRST), None)

    async def _answer(self, job: Job, queue_deadline_s: float | None) -> Answer:
        deployment, answer = job.payload.deployment, job.payload.answer
        self._deployments[deployment.key] = deployment
        if (trace := current.get()) is not None:
            self._traces[deployment.key] = trace
        steps = self._slots.submit(job, self._limits(deployment))
        self._do(steps)
        if deployment.grows and not (steps and isinstance(steps[0], Run)):
            self._grower.watch(deployment)
        if not job.batch_ready:
            self._loop.call_later(deployment.batch_delay_s, lambda: self._do(self._slots.mark_ready(job)))
        deadline_s = self._settings.queue_deadline_s if queue_deadline_s is None else queue_deadline_s
        timer = self._loop.call_later(deadline_s, self._give_up, job, deadline_s)
        self._asked += 1
        try:
            found: Answer = await answer
            return found
        finally:
            self._asked -= 1
            self._answered_s = self._loop.time()
            timer.cancel()
            if not answer.done() or answer.cancelled():  # the client has hung up
                self._abandon(job)

    def expect(self, deployment: Deployment, tensors: Sequence[Tensor]) -> None:
        """Have a predictor load already for a request of these tensors, whose deployment is being looked up again.

        If the deployment has changed, it is retired, and the predictor ends.
        """
        if self._closing or self._keep_alive_of(deployment) == 0:
            return
        with contextlib.suppress(CallerError):
            check_against(tensors, self.signatures.of(deployment)[0], deployment.model)
            steps = self._slots.expect(deployment.key, self._limits(deployment))
            if steps:
                self._deployments[deployment.key] = deployment
                self._do(steps)

    def _job(self, request: Request, level: int) -> Job:
        deployment = request.deployment
        together = deployment.batch and request.on_part is None
        rows, group = rows_of(request.tensors, request.wanted) if together else (1, None)
        if deployment.batch and rows > deployment.batch:
            raise CallerError(
                f"the request has {rows} rows; {deployment.model!r} takes {deployment.batch} at once (max_batch_size)"
            )
        return Job(
            deployment.key,
            rows,
            group,
            batch_ready=not (together and deployment.batch_delay_s),
            payload=request,
            level=level,
        )

    def _limits(self, deployment: Deployment) -> Limits:
        most = self._grower.most if deployment.grows else 0
        return Limits(deployment.instances, self._settings.queue, deployment.batch, most)

    def _give_up(self, job: Job, deadline_s: float) -> None:
        steps = self._slots.cancel(job)
        if steps is not None:
            model = job.payload.deployment.model
            remedy = "ask with a longer `deadline`, or raise the `instances` of its manifest or --predictors"
            self._fail(job, DeadlineError(f"no predictor of {model!r} was free within {deadline_s:g} s; {remedy}"))
            self._do(steps)

    def _abandon(self, job: Job) -> None:
        """A client has hung up. A run that no client waits for goes on for as long as a new predictor would take.

        So what is nearly done costs no new predictor, and what takes minutes costs no minutes.
        """
        steps = self._slots.cancel(job)
        self._do(steps or [])
        predictor = self._runs.get(job)
        running = None if predictor is None else self._running.get(predictor)
        if running is None or not self._settings.end_abandoned:
            return
        # Once for each run: a client that hangs up while its run begins is noticed twice, and a batch has several.
        if running.abandoned_timer is None and all(each.payload.answer.done() for each in running.jobs):
            if running.stops:
                running.process.stop_run()
            again_s = sum(running.stages.values())
            running.abandoned_timer = self._loop.call_later(again_s, self._end_abandoned, running)

    def _share(self) -> None:
        """Divide the processors again between runs that can change their threads while they go on."""
        runs = self._computing.now
        for running in self._running.values():
            threads = running.deployment.threads_of(runs)
            if running.stops and running.jobs and running.threads != threads:
                running.threads = threads
                running.process.share_threads(threads)

    def _end_abandoned(self, running: Running) -> None:
        if not running.process.dying:
            self._count("abandoned")
            running.process.kill("no client waits for its run any more")

    def retire(self, key: DeploymentKey) -> None:
        """Let the predictors of a deployment end, as soon as they are idle; those of tenants and places, too."""
        for each in {
            key,
            *(deployment.key for deployment in self._deployments.values() if deployment.key.of_model() == key),
        }:
            self.hot.retire(each)
            self.on_devices.retire(each)
            self._do(self._slots.retire(each))

    def state(self, key: DeploymentKey) -> dict[str, int]:
        """Return how many of a deployment's predictors are in each state, and how many requests wait."""
        return self._slots.counts(key)

    def report(self) -> dict[str, Any]:
        """Return predictors and requests by model and by version, spares and templates by framework, and counters."""
        models: dict[str, Counter[str]] = {}
        versions: dict[str, Counter[str]] = {}
        for key, deployment in self._deployments.items():  # of a model: places, and what its manifest said before
            models.setdefault(deployment.subject, Counter()).update(self._slots.counts(key))
            versions.setdefault(f"{deployment.subject}@{deployment.version}", Counter()).update(self._slots.counts(key))
        return {
            "models": {model: dict(counts) for model, counts in models.items() if any(counts.values())},
            "versions": {version: dict(counts) for version, counts in versions.items() if any(counts.values())},
            "spares": self._warm_pool.spares(),
            "hot": self.hot.report(),
            "device_spares": self.on_devices.report(),
            "learning": self._warm_pool.learning(),
            "preparing": self.ahead.report(),
            "templates": self._warm_pool.templates(),
            "counters": dict(self.counters),
            "isolation": self._settings.isolation.report(),
        }

    def prepare(self, environment: Environment) -> None:
        """Start a template and its spares before they are needed, and keep them also without use."""
        self._warm_pool.keep(environment)

    def begin_recent(self) -> None:
        """Begin templates of frameworks that were used lately, at the lowest priority."""
        self._warm_pool.begin_recent()

    def hide(self, path: str) -> None:
        """Have predictors in a namespace not see a folder or file of the daemon's. See `Launcher.hide`."""
        self._launcher.hide(path)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _do(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Fail):
                self._fail(step.job, step.error)
            elif isinstance(step, Start):
                self._background.start(self._start(step.predictor, self._deployments[step.key]))
            elif isinstance(step, Run):
                self._background.start(self._run(step.predictor, step.jobs))
            elif isinstance(step, Stop):
                self._background.start(self._stop(step.predictor))

    async def _start(self, predictor: int, deployment: Deployment) -> None:
        with span("start predictor", parent=self._traces.pop(deployment.key, None)) as starting:
            await self._started(predictor, deployment, starting)

    async def _started(self, predictor: int, deployment: Deployment, starting: AnySpan) -> None:
        self._coming.add(predictor)
        try:
            began = time.perf_counter()
            with span("process"):
                hot = await self.hot.take(deployment) if deployment.place is None else None
                process = await self._taken(deployment) if hot is None else hot[0]
            starting.set(how=process.how, **{"process.pid": process.pid})
            taken = time.perf_counter()
        except (TrimsError, OSError) as error:
            self._coming.discard(predictor)
            self._refuse(predictor, deployment, as_trims_error(error, "no predictor can be started"))
            self._forget(predictor, deployment.key, "it was not started")
            return
        running = self._running[predictor] = Running(deployment, process, process.how, began)
        process.going.add_done_callback(lambda _: self._do(self._slots.lost(predictor)))
        process.ended.add_done_callback(lambda ended: self._ended(predictor, ended.result()))
        self._count(f"started_{process.how}")
        if predictor not in self._coming:  # its slot is needed by now
            await process.end()
            return
        self._coming.discard(predictor)
        if hot is not None:
            self._loaded(predictor, running, hot[1], taken - began - sum(hot[1]["stages"].values()))
            return
        try:
            record = process.pages is not None and process.pages.lacks(deployment.key)
            message = {**load_message(deployment, self._settings.most_predictor_bytes), "record": record}
            if deployment.grows:  # frameworks that cannot change it later divide the processors from their start
                message["threads"] = deployment.threads_of(1 + self._slots.surplus(deployment.key))
            computes = self._computing.loads(predictor, deployment.environment.framework)
            with computes, naming(deployment, "raise --load-deadline-s"), span("load model"):
                answer = await load(
                    process, message, self._settings.load_deadline_s, lambda: self._make_way(deployment)
                )
        except TrimsError as error:
            self._refuse(predictor, deployment, error, hung=isinstance(error, DeadlineError) and process.dying)
            return
        self._loaded(predictor, running, answer, taken - began)
        if running.how != "spawned":
            self._warm_pool.preloads.want(deployment.environment, deployment.model, deployment.preload)
            self._warm_pool.teach(deployment.environment, [*deployment.preload, *answer["imported"]])

    async def _taken(self, deployment: Deployment) -> PredictorProcess:
        """A process for a model; idle predictors end for it if descriptors or processes lack."""
        waiting = await self.on_devices.take(deployment)
        if waiting is not None:
            return waiting
        while True:
            try:
                return await self._warm_pool.take(deployment.environment)
            except CapacityError:
                if not await self._make_way(deployment):
                    raise

    async def make_way(self, place: str | None = None) -> bool:
        """End what waits, for a load that lacks memory: a spare where it is a device that lacks it, else a predictor.

        False if there is none.

        Args:
            place: Place of the load; None for that of the model's manifest.
        """
        spare = is_device(place or "") and await self.on_devices.make_way(place)
        return spare or await self._end_idle(DeploymentKey("")) or (place is None and await self.on_devices.make_way())

    async def _make_way(self, deployment: Deployment) -> bool:
        """End what waits, for a predictor that lacks memory, a lease or descriptors: spares on its device come first.

        False if nothing waits.
        """
        place = self.on_devices.place_of(deployment)
        return bool(place and await self.on_devices.make_way(place)) or await self._end_idle(deployment.key)

    async def _end_idle(self, key: DeploymentKey) -> bool:
        """End a predictor that is idle, for one of the deployment. False if none is."""
        steps = self._slots.give_way(key)
        ending = self._running.get(steps[0].predictor) if steps and isinstance(steps[0], Stop) else None
        self._do(steps)
        if ending is not None:
            await asyncio.shield(ending.process.ended)
        return bool(steps)

    def _loaded(self, predictor: int, running: Running, answer: Message, process_s: float) -> None:
        deployment = running.deployment
        self.failures.clear(deployment)
        self.hot.loaded(deployment, answer)
        self.on_devices.loaded(deployment, running.process)
        running.place, running.warm = str(answer["place"]), bool(answer["warm"])
        running.stops = answer.get("stops") is True
        running.stages = with_rest({"process_s": max(0.0, process_s), **answer["stages"]}, running.began_s)
        self._grower.growth.started(deployment.key, running.stages)
        if self.on_load is not None:
            self.on_load(deployment, running.place, running.stages)
        self.signatures.learn(deployment, answer)
        self._do(self._slots.ready(predictor))
        self._watch_idle(predictor)

    def _refuse(self, predictor: int, deployment: Deployment, error: TrimsError, *, hung: bool = False) -> None:
        self._learn_failure(predictor, deployment, PredictorError(str(error)) if hung else error)
        self._grower.growth.failed(deployment.key, time.perf_counter())
        self._do(self._slots.failed(predictor, error))

    def _learn_failure(self, predictor: int, deployment: Deployment, error: TrimsError) -> None:
        """Keep why a predictor could not load its model, before its clients get the error; see `Failures.learn`.

        Not for a predictor that was asked to end meanwhile. Nor while another one has loaded the model, which shows
        that the model runs.
        """
        if self._slots.is_starting(predictor) and not (self._killing or self.has_loaded(deployment)):
            self.failures.learn(deployment, error)

    def has_loaded(self, deployment: Deployment) -> bool:
        """Return whether a predictor that lives has loaded the model."""
        counts = self._slots.counts(deployment.key)
        return bool(counts["idle"] or counts["busy"])

    async def _run(self, predictor: int, jobs: Sequence[Job]) -> None:
        running = self._running[predictor]
        running.jobs, running.run_began_s = jobs, time.perf_counter()
        self._runs.update(dict.fromkeys(jobs, predictor))
        if jobs[0].payload.answer.cancelled():  # between the decision and this
            self._abandon(jobs[0])
        with self._computing.runs(predictor, running.deployment.environment.framework):
            await self._runner.run(running, jobs)
        running.shortest_s = min(running.shortest_s, time.perf_counter() - running.run_began_s)
        running.end_run()
        for job in jobs:
            del self._runs[job]
        running.keep_alive_s = jobs[-1].payload.keep_alive_s
        if not running.process.dying:  # else its end is reported later
            self._do(self._slots.done(predictor))
            self._watch_idle(predictor)
        self._warm_pool.tend(running.deployment.environment)
        self.hot.tend()
        self.on_devices.tend()

    async def _stop(self, predictor: int) -> None:
        running = self._running.get(predictor)
        if running is None:
            self._coming.discard(predictor)
        else:
            await running.process.end()

    def _ended(self, predictor: int, why: str) -> None:
        running = self._running.pop(predictor)
        running.forget_idle()
        running.end_run()
        self._count("ended")
        level = logging.DEBUG if self._closing else logging.INFO
        _log.log(level, "a predictor of %s (process %d) ended: %s", running.deployment.model, running.process.pid, why)
        self._learn_failure(
            predictor, running.deployment, PredictorError(f"{running.deployment.model}: its predictor ended: {why}")
        )
        # After the task that waits for its answer has reported to the clients, which knows more.
        self._loop.call_soon(self._forget, predictor, running.deployment.key, why)

    def _forget(self, predictor: int, key: DeploymentKey, why: str) -> None:
        self._do(self._slots.ended(predictor, why))
        if not any(self._slots.counts(key).values()):
            self._deployments.pop(key, None)
            self._traces.pop(key, None)

    def _watch_idle(self, predictor: int) -> None:
        """End an idle predictor once its keep-alive is over."""
        running, idles = self._running.get(predictor), self._slots.idles(predictor)
        if running is None or idles is None:
            return
        keep_alive_s = self._keep_alive_of(running.deployment) if running.keep_alive_s is None else running.keep_alive_s
        running.forget_idle()
        surplus = self._slots.surplus(running.deployment.key)
        if surplus and (keep_alive_s is None or keep_alive_s > SURPLUS_KEEP_ALIVE_S):
            rest_s = None if keep_alive_s is None else keep_alive_s - SURPLUS_KEEP_ALIVE_S
            running.idle_timer = self._loop.call_later(
                SURPLUS_KEEP_ALIVE_S, self._end_surplus, predictor, idles, rest_s
            )
        elif keep_alive_s is not None:
            running.idle_timer = self._loop.call_later(keep_alive_s, self._expire, predictor, idles)

    def _expire(self, predictor: int, idles: int) -> None:
        self._do(self._slots.expire(predictor, idles))

    def _end_surplus(self, predictor: int, idles: int, rest_s: float | None) -> None:
        """End an idle predictor if its deployment has further ones; else let it stay for the rest of its keep-alive."""
        running = self._running.get(predictor)
        if running is None or self._slots.idles(predictor) != idles:
            return
        key = running.deployment.key
        if self._grower.needs_idle(key):
            running.idle_timer = self._loop.call_later(
                SURPLUS_KEEP_ALIVE_S, self._end_surplus, predictor, idles, rest_s
            )
        elif self._slots.surplus(key):
            self._expire(predictor, idles)
        elif rest_s is not None:
            running.idle_timer = self._loop.call_later(rest_s, self._expire, predictor, idles)

    def _keep_alive_of(self, deployment: Deployment) -> float | None:
        return self._settings.keep_alive_s if deployment.keep_alive_s is None else deployment.keep_alive_s

    def _saw(self, deployment: Deployment, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        found = self.signatures.see(deployment, inputs, outputs)
        if found is not None and deployment.is_plain and self.keep is not None:
            self._background.start(self.keep(deployment.opened_as or deployment.model, *found))

    def _fail(self, job: Job, error: TrimsError) -> None:
        if self._killing and isinstance(error, PredictorError):  # not its fault, nor the request's
            error = DrainingError("the endpoint ended before the request was answered; send it again")
        if not job.payload.answer.done():
            job.payload.answer.set_exception(error)

    # -- the rest --------------------------------------------------------------------------------------------------

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    async def close(self, grace_s: float = 10.0) -> None:
        """Take no more requests, let those that run finish within the time, and end all processes.

        Called once more, it returns at once; a shorter grace counts.
        """
        until_s = self._loop.time() + grace_s
        if self._closing:
            self._grace_until_s = min(self._grace_until_s, until_s)
            return
        self._closing, self._grace_until_s = True, until_s
        while self._asked and self._loop.time() < self._grace_until_s:
            await asyncio.sleep(0.02)
        self._killing = True  # before any process is ended: no model is to blame for that
        for each in list(self._deployments):
            self.retire(each)
        for running in list(self._running.values()):
            running.process.kill("the endpoint ended")
        await self._grower.close()
        await self.ahead.close()
        await self.hot.close()
        await self.on_devices.close()
        await self._warm_pool.close()
        while self._background:  # tasks that end may start others
            await self._background.wait()
        self._launcher.close()

    def _is_busy(self) -> bool:
        """Return whether a request waits or runs, or has just been answered."""
        return bool(self._asked) or self._loop.time() < self._answered_s + _AFTERWARDS_S
