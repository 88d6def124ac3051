"""Service of the endpoint over any protocol: models, descriptions, inference, statistics, the model repository."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import trims
from trims.core.errors import BrokenWeightsError, DaemonAwayError, ModelNotFoundError, PermissionDeniedError, TrimsError
from trims.manifests.references import name_of, reference_to
from trims.trace.spans import configure, is_on
from trims_predictors.deployment.deployments import Deployments, keeping
from trims_predictors.deployment.places import first_that_serves
from trims_predictors.endpoint.descriptions import configuration_of, metadata_of
from trims_predictors.endpoint.observe.daemon_metrics import DaemonFigures, figures
from trims_predictors.endpoint.observe.metrics import Metrics
from trims_predictors.endpoint.observe.statistics import ModelStatistics
from trims_predictors.endpoint.principals import caller
from trims_predictors.endpoint.registered_models import RegisteredModels
from trims_predictors.endpoint.repository import Repository
from trims_predictors.endpoint.requests.labels import Labels
from trims_predictors.endpoint.requests.outputs import Output, arrange
from trims_predictors.endpoint.requests.shared_memory import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.control import AsyncAdmin, Device, Model
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.manifests.serving import TensorType
    from trims.tenants import Tenant
    from trims.trace.export.otlp import Exporter
    from trims_predictors.deployment.deployment import Answer, Deployment
    from trims_predictors.endpoint.observe.tracing import RequestSpan
    from trims_predictors.endpoint.requests.infer_request import InferRequest
    from trims_predictors.endpoint.requests.part_streams import OnPart
    from trims_predictors.endpoint.requests.shared_memory import Lent
    from trims_predictors.pool.pool import WorkerPool
    from trims_predictors.tensors import Tensor

#: Seconds for the daemon to report its state, and where its files are.
_PATIENCE_S = 2.0
#: Seconds for the daemon to describe its devices, whose keepers it asks.
_DEVICES_S = 10.0
EXTENSIONS = (
    "binary_tensor_data", "classification", "generate", "model_configuration", "model_repository", "schedule_policy",
    "statistics",
)  # fmt: skip


class Answered(NamedTuple):
    """Result of a request."""

    deployment: Deployment
    answer: Answer
    outputs: list[Output]


class Service:
    """The endpoint without its protocols.

    Args:
        daemon: The control door of the daemon whose models it serves.
        picker: Says which environment a framework runs in.
        exporter: Sends spans of requests to a collector; None for none.
        shared_memory: Regions of callers; None where they are switched off.
        variables: Environment variables that manifests may name; None for those of `TRIMS_MODEL_VARIABLES`.
    """

    def __init__(
        self,
        daemon: AsyncAdmin,
        pool: WorkerPool,
        picker: InterpreterSelection,
        exporter: Exporter | None = None,
        shared_memory: SharedMemory | None = None,
        *,
        variables: Mapping[str, str | None] | None = None,
    ) -> None:
        self._daemon = daemon
        self.pool = pool
        self._deployments = Deployments(daemon, picker, pool.retire, variables=variables)
        pool.keep = keeping(daemon)
        pool.on_devices.devices = self._devices
        #: Statistics by tenant, model and version; those without a tenant are of all requests.
        self._statistics: dict[tuple[str, str, str], ModelStatistics] = {}
        self._figures = DaemonFigures(daemon)
        #: Life of the daemon whose files were hidden from predictors.
        self._hidden_in: object = None
        self._labels = Labels()
        self.metrics = Metrics()
        pool.on_load = self._note_load
        self.shared_memory = shared_memory or SharedMemory()
        self.exporter = exporter
        self._draining = False
        self._was_ready = True
        #: Orders on models, and the overview of them.
        self.repository = Repository(daemon, pool, self._deployments, self)

    async def _devices(self) -> Sequence[Device]:
        """Return the daemon's devices. Raises DaemonAwayError also for a daemon that hangs."""
        try:
            return (await asyncio.wait_for(self._daemon.residents(), _DEVICES_S)).devices
        except asyncio.TimeoutError:
            raise DaemonAwayError(f"the daemon did not describe its devices within {_DEVICES_S:g} s") from None

    def _note_load(self, deployment: Deployment, place: str, phases: Mapping[str, float]) -> None:
        self.metrics.loaded(deployment.model, place, phases)

    def metadata(self) -> dict[str, Any]:
        """Return name, version and extensions of the server."""
        extensions = [*EXTENSIONS, *(["system_shared_memory"] if self.shared_memory.offered else [])]
        return {"name": "trims", "version": trims.__version__, "extensions": extensions}

    async def is_ready(self) -> bool:
        """Return whether the daemon answers and takes opens, and the endpoint takes requests."""
        try:
            status = await asyncio.wait_for(self._daemon.status(), _PATIENCE_S)  # it may hang, and probes must not
            self._was_ready = status.health.status == "serving"
        except (TrimsError, asyncio.TimeoutError):
            self._was_ready = False
        if self._was_ready:
            await self._hide_files()  # which is also where this endpoint records traces from its first request on
        return self.was_ready

    @property
    def was_ready(self) -> bool:
        """Return the readiness that was found last, for callers that must not wait for the daemon."""
        return self._was_ready and not self._draining

    def drain(self) -> None:
        """Say from now on that nothing is ready: the endpoint is ending."""
        self._draining = True

    async def models(self) -> list[Model]:
        """Return all registered models; for a tenant those that it may open."""
        tenant = caller()
        return [each for each in await self._daemon.models() if tenant is None or tenant.may_open(each.name)]

    def _is_hidden(self) -> bool:
        return self._hidden_in == self._deployments.daemon_life

    async def _hide_files(self) -> None:
        """Have predictors not see the daemon's files, wherever it has them."""
        if self._is_hidden():
            return
        life = self._deployments.daemon_life
        try:
            told = await asyncio.wait_for(self._daemon.status(), _PATIENCE_S)
        except (TrimsError, asyncio.TimeoutError):
            return  # no model can be opened either, and the next request asks again
        self._hidden_in = life
        self.pool.hide(told.health.state_dir)
        if not is_on():
            configure(os.path.join(told.health.state_dir, "trace"), "endpoint")

    async def deployment(self, model: str, version: str = "") -> Deployment:
        """See `Deployments.of`. A tenant has its own predictors. Raises PermissionDeniedError if it may not open it."""
        tenant = caller()
        if tenant is not None:
            tenant.check(model)
        await self._hide_files()
        try:
            deployment = await self._deployments.of(model, version)
        except ModelNotFoundError as error:
            if not version and not self._deployments.knows(name_of(model)):  # else only this version is not there
                self.metrics.forget(model)
                self.pool.failures.forget(model)
            # Clients of Triton know the error by these words.
            raise ModelNotFoundError(f"Request for unknown model: {error}") from error
        self.metrics.register(model)
        return deployment if tenant is None else deployment.for_tenant(tenant.name)

    async def deployment_now(self, model: str) -> Deployment:
        """Return as `deployment`, at once where nothing has to be asked for."""
        return self._current(model) or await self.deployment(model)

    def _current(self, model: str, version: str = "") -> Deployment | None:
        """Return the deployment of a model for the operator, if that is known to be current."""
        return self._deployments.current(model, version) if caller() is None and self._is_hidden() else None

    async def watch(self) -> None:
        """Keep what is known of models current, and prepare for first requests, until the task is cancelled."""
        models = RegisteredModels(
            self._daemon, self.deployment, self._deployments.forget, self.pool.hot.want, self.pool.ahead.prepare
        )
        self._deployments.on_change = models.note
        looking = asyncio.ensure_future(models.run(lambda: self._deployments.is_watched))
        try:
            await self._deployments.watch()
        finally:
            looking.cancel()

    async def metrics_page(self) -> bytes:
        """Return the page of metrics for Prometheus, with the daemon's figures if it answers soon."""
        found = list(figures(await self._figures.look()))
        # In a thread, because many models make it long; what it reads of the pool is a copy.
        return await asyncio.to_thread(self.metrics.page, self.pool.report(), found)

    async def close(self) -> None:
        """Let go of the daemon. The pool is closed by itself."""
        self.shared_memory.close()
        await self._figures.close()
        await self.repository.overview.close()

    async def infer(
        self,
        model: str,
        version: str,
        asked: InferRequest,
        shared: Lent,
        *,
        binary: bool = False,
        span: RequestSpan | None = None,
    ) -> Answered:
        """Answer one request, count it, and add it to its span; see `WorkerPool.infer`.

        Args:
            version: A version or a label; empty for the version that the name leads to.
            asked: The request; inputs in shared memory have been read.
            shared: Regions that it names.
            binary: Whether outputs are binary where the request says nothing of them.

        Raises as `WorkerPool.infer` and `arrange`.
        """
        deployment, answer = await self.answer(model, version, asked, span)
        outputs = await arrange(
            asked, answer.outputs, batches=bool(deployment.batch), shared=shared, binary=binary,
            labels=partial(self._labels.of, deployment),
        )  # fmt: skip
        return Answered(deployment, answer, outputs)

    async def run(
        self,
        model: str,
        version: str,
        asked: InferRequest,
        *,
        on_part: OnPart | None = None,
        span: RequestSpan | None = None,
    ) -> tuple[Deployment, Answer]:
        """Answer one request that is sent on in a form of its own; see `infer`.

        Args:
            version: Version of the manifest; empty for any.
            asked: The request. Outputs in shared memory and classifications are for `infer`.
            on_part: Takes parts of the answer before it, if the model's predictor has parts.
        """
        deployment, answer = await self.answer(model, version, asked, span, on_part)
        asked.chosen(answer.outputs)
        return deployment, answer

    async def answer(
        self,
        model: str,
        version: str,
        asked: InferRequest,
        span: RequestSpan | None,
        on_part: OnPart | None = None,
    ) -> tuple[Deployment, Answer]:
        """Answer one request, count it, and add it to its span; the outputs are as the predictor gives them."""
        began = time.perf_counter()
        deployment = self._current(model, version)
        if deployment is None:
            self._expect(model, version, asked)
            deployment = await self.deployment(model, version)
        if not asked.places:
            return deployment, await self._answer(deployment, asked=asked, began_s=began, span=span, on_part=on_part)
        parts: list[bool] = []

        def take(part: Sequence[Tensor]) -> None:
            parts[:] = [True]
            on_part(part)  # type: ignore[misc]  # given only if there is one

        return await first_that_serves(
            deployment,
            asked.places,
            partial(self._answer, asked=asked, began_s=began, span=span, on_part=None if on_part is None else take),
            lambda: not parts,
        )

    async def _answer(
        self,
        deployment: Deployment,
        *,
        asked: InferRequest,
        began_s: float,
        span: RequestSpan | None,
        on_part: OnPart | None,
    ) -> Answer:
        """Answer one request at one place, count it, and add it to its span."""
        tenant = caller()
        statistics = self._statistics_of(deployment, tenant)
        try:
            answer = await self.pool.infer(
                deployment,
                asked.inputs,
                queue_deadline_s=asked.queue_deadline_s,
                keep_alive_s=asked.keep_alive_s,
                priority=asked.priority,
                began_s=began_s,
                begin_run=None if span is None else span.begin_run,
                wanted=tuple(asked.wanted or ()),
                on_part=on_part,
            )
        except (TrimsError, asyncio.CancelledError):
            for counted in statistics:
                counted.failed(time.perf_counter() - began_s)
            raise
        for counted in statistics:
            counted.answered(answer, time.perf_counter() - began_s)
        if span is not None:
            span.answered(deployment, answer)
        return answer

    def _expect(self, model: str, version: str, asked: InferRequest) -> None:
        """Have a predictor load, as the model was last known, while the deployment is looked up again."""
        tenant, guess = caller(), self._deployments.guess(model, version)
        if guess is not None and (tenant is None or tenant.may_open(model)):
            guess = guess.at(asked.places[0]) if asked.places else guess
            self.pool.expect(guess if tenant is None else guess.for_tenant(tenant.name), asked.inputs)

    def _statistics_of(self, deployment: Deployment, tenant: Tenant | None) -> list[ModelStatistics]:
        """Return the counters of a request: the version's statistics, and for a tenant its own as well."""
        names = [""] if tenant is None else ["", tenant.name]
        of = deployment.model, deployment.version
        return [self._statistics.setdefault((name, *of), ModelStatistics()) for name in names]

    async def inputs_of(self, model: str, version: str = "") -> tuple[Sequence[TensorType], bool]:
        """The inputs of a model as far as they are known, and whether it takes batches."""
        deployment = await self.deployment(model, version)
        return self.pool.signatures.stated(deployment)[0], bool(deployment.batch)

    async def describe(self, model: str, version: str = "") -> dict[str, Any]:
        """Metadata of a model: inputs and outputs as the manifest, a predictor, its graph or its first run has them.

        If it could not be loaded last, its `properties` say why.
        """
        deployment = await self.deployment(model, version)
        return metadata_of(
            deployment, *self.pool.signatures.described(deployment), self.pool.failures.reason(deployment)
        )

    async def why_not_ready(self, model: str, version: str = "") -> str:
        """Return why a model cannot take requests now; empty if it is ready, or nothing speaks against it.

        Raises ModelNotFoundError, and PermissionDeniedError for a tenant that may not open it.
        """
        try:
            deployment = await self.deployment(model, version)
        except (ModelNotFoundError, PermissionDeniedError):
            raise
        except TrimsError as error:
            return str(error)
        await self.is_ready()
        reason = self.why_nothing_is_ready() or self.pool.failures.reason(deployment)
        if reason or self.pool.has_loaded(deployment):
            return reason
        return await self._why_not_opened(reference_to(model, version))

    async def _why_not_opened(self, reference: str) -> str:
        """Return why no open of a model can succeed, by its files; empty if nothing is known, or its disk hangs."""
        with contextlib.suppress(TrimsError, asyncio.TimeoutError):
            try:
                await asyncio.wait_for(self._daemon.show(reference, look=True), _PATIENCE_S)
            except BrokenWeightsError as error:
                return str(error)
        return ""

    def why_nothing_is_ready(self) -> str:
        """Return why no model can take requests, as it was found last; empty if models can."""
        if self._draining:
            return "the endpoint is ending"
        return "" if self._was_ready else "the daemon takes no opens: it is draining, or does not answer (trims status)"

    async def configuration(self, model: str, version: str = "") -> dict[str, Any]:
        """Return Triton's configuration of a model, which load generators ask for before they begin."""
        deployment = await self.deployment(model, version)
        return configuration_of(deployment, *self.pool.signatures.described(deployment))

    async def statistics(self, model: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return the statistics of one model, or of all that requests named; a tenant gets those of its requests."""
        tenant = caller()
        whose = "" if tenant is None else tenant.name
        if model:
            deployment = await self.deployment(model, version)
            counted = self._statistics.get((whose, deployment.model, deployment.version), ModelStatistics())
            return [counted.as_json(deployment.model, deployment.version)]
        told = []
        for (of, name, of_version), counted in list(self._statistics.items()):
            try:
                if of == whose and of_version in (await self.deployment(name)).versions_there:
                    told.append(counted.as_json(name, of_version))
            except ModelNotFoundError:
                continue  # it was removed since
        return told
