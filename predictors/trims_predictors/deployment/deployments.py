"""Deployments made from the daemon's description of each model: one for each, made again once something changed.

Requests name a model, and may name a version or a label: each such *reference* has a deployment, and those that lead to
one version share its predictors. A reference that is switched to another version has the predictors of the last one end
once they are idle.

The daemon reports changes of models (`ModelWatch`); code and environments lie on disks, and are looked at in the
background for models that are in use. So a request finds a deployment that is current and asks for nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trims.control import TensorInfo
from trims.core.errors import DaemonAwayError, ModelNotFoundError, NotSupportedError, TrimsError
from trims.core.functions import FORMS
from trims.manifests.manifest import parse_manifest
from trims.manifests.references import name_of, reference_to, split_reference
from trims.manifests.runs import check_unread_options, framework_in, nothing_runs
from trims.manifests.serving import NO_SIGNATURE, Signature
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment.code_files import code_identity
from trims_predictors.deployment.cpu_shares import processors
from trims_predictors.deployment.deployment import Deployment
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.deployment.model_watch import ModelWatch
from trims_predictors.deployment.variables import listed_variables, variables_of
from trims_predictors.frameworks import AS, CLASS, FUNCTION, HANDLER, PLUGIN, PREDICTORS
from trims_predictors.tensors import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from trims.control import AsyncAdmin, Model
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.manifests.manifest import Manifest
    from trims_predictors.deployment.signatures import Keep

#: Seconds for which a deployment is used before the daemon is asked again, where the daemon reports no changes.
_FRESH_S = 1.0
#: Seconds between two looks at code and environments.
_LOOK_S = 1.0
#: Seconds after a look, in which a deployment counts as current: a look may be late.
_LOOKED_S = 3.0
#: Seconds after its last request, for which a model's code and environment are looked at.
_IN_USE_S = 300.0
#: Seconds after which another daemon may answer, where it is not watched.
_ANOTHER_S = 30.0
#: Seconds for the daemon to describe a model: the first look at a file takes a second at most.
_PATIENCE_S = 10.0
#: Times that the daemon is asked about a model that changes each time meanwhile.
_MOST_ASKED = 5
#: Seconds for the daemon to keep what a first run had.
_KEEP_S = 10.0
#: Frameworks whose artifacts name no code, unless an option says so.
_WITHOUT_CODE = ("onnxruntime", "transformers")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    """A deployment, and what it was made of.

    Attributes:
        framework: Name of the framework that runs it; empty for none.
        surroundings: Environment, and identity of the code beside the manifest.
        target: Manifest of the model whose artifact it has, as JSON; empty if it has its own.
        key: Key of the model's image; empty while it is not known.
        looked_s: When code and environment were looked at.
        used_s: When a request wanted it last.
    """

    deployment: Deployment
    manifest: Manifest
    framework: str
    surroundings: tuple[Environment, str]
    target: str
    key: str
    asked_s: float
    looked_s: float
    used_s: float


class Deployments:
    """Deployments of all models of a daemon.

    Args:
        picker: Says which environment a framework runs in.
        retire: Called with the key of a deployment that is replaced.
        variables: Environment variables that manifests may name; None for those that `listed_variables` finds.
    """

    def __init__(
        self,
        daemon: AsyncAdmin,
        picker: InterpreterSelection,
        retire: Callable[[DeploymentKey], None],
        *,
        variables: Mapping[str, str | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemon = daemon
        self._picker = picker
        self._retire = retire
        self._variables = listed_variables() if variables is None else variables
        self._clock = clock
        self._processors = processors()
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Future[_Known]] = {}
        #: References that are asked for and have the artifact of another model: that model.
        self._asking_of: dict[str, str] = {}
        #: Known references that something changed of since the daemon was asked last.
        self._changed: set[str] = set()
        #: Called with the names of models that changed; None for all.
        self.on_change: Callable[[Collection[str] | None], None] | None = None
        self._watch = ModelWatch(daemon, self._report)

    async def watch(self) -> None:
        """Keep all deployments current until the task is cancelled."""
        watching = asyncio.ensure_future(self._watch.run())
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                await self.look()
        finally:
            watching.cancel()

    async def look(self) -> None:
        """Look at code and environments of models in use; have deployments that they changed made again."""
        now_s = self._clock()
        looked_at = [known for known in self._known.values() if now_s - known.used_s <= _IN_USE_S]
        differ = await asyncio.to_thread(lambda: [self._differs(known) for known in looked_at])
        for known, differs in zip(looked_at, differ, strict=True):
            known.looked_s = now_s
            if differs:
                self._mark((known.deployment.model,))

    def _differs(self, known: _Known) -> bool:
        try:
            return self._surroundings(known.manifest, known.framework) != known.surroundings
        except Exception as error:  # noqa: BLE001 - the next request asks for it and gets the error; others' are looked at
            _log.debug("%s cannot be looked at: %s", known.deployment.model, error)
            return True

    def _report(self, names: Iterable[str] | None) -> None:
        given = None if names is None else list(names)
        self._mark(given)
        if self.on_change is not None and given != []:
            self.on_change(given)

    def _mark(self, names: Iterable[str] | None) -> None:
        """Have models asked for again at their next requests, and what refers to them; None for all."""
        there = self._known.keys() | self._asking.keys()
        if names is None:
            self._changed.update(there)
        elif models := {name_of(name) for name in names}:
            self._changed.update((each for each in there if name_of(each) in models), self._referring(models))

    def _referring(self, models: Collection[str]) -> list[str]:
        """Return the references whose manifests have the artifact of one of these models."""
        having = [(each, known.manifest.artifact.model) for each, known in self._known.items()]
        return [each for each, of in (*having, *self._asking_of.items()) if of is not None and name_of(of) in models]

    @property
    def is_watched(self) -> bool:
        """Return whether the daemon reports all changes of models now."""
        return self._watch.is_complete

    @property
    def daemon_life(self) -> object:
        """Return another value once another daemon may answer."""
        return self._watch.streams if self._watch.is_complete else int(self._clock() / _ANOTHER_S)

    def current(self, name: str, version: str = "") -> Deployment | None:
        """Return the deployment of a model if nothing changed since it was made; None: `of` finds out."""
        reference = f"{name}@{version}" if version else name
        known = self._known.get(reference)
        if known is None or reference in self._changed or reference in self._asking:
            return None
        watched = self._watch.is_complete
        known.used_s = now_s = self._clock()
        since_s = now_s - (known.looked_s if watched else known.asked_s)
        return known.deployment if since_s <= (_LOOKED_S if watched else _FRESH_S) else None

    async def of(self, name: str, version: str = "") -> Deployment:
        """The deployment of a model; while the daemon is away, as it was: predictors that run need no daemon.

        Args:
            version: A version or a label; empty for the version that the name leads to.

        Raises:
            ModelNotFoundError: There is no such model, version or label.
            NotSupportedError: Nothing says what runs it.
            DaemonAwayError: No daemon answers, and none was asked for this model before.
        """
        current = self.current(name, version)
        if current is not None:
            return current
        reference = reference_to(name, version)
        known = self._known.get(reference) or self._led_to(name, version)
        try:
            known = await self._fresh(reference)
        except DaemonAwayError:
            if known is None:
                raise
        return known.deployment

    def _led_to(self, name: str, version: str) -> _Known | None:
        """Return what another reference led to, if that is this version of the model."""
        others = (each for known, each in self._known.items() if version and name_of(known) == name)
        return next((each for each in others if each.deployment.version == version), None)

    def guess(self, name: str, version: str = "") -> Deployment | None:
        """Return the deployment as the daemon was asked last; None if it never was."""
        known = self._known.get(reference_to(name, version))
        return None if known is None else known.deployment

    async def _fresh(self, name: str) -> _Known:
        """Ask the daemon, once for all requests that need it at this moment; again if the model changed meanwhile."""
        for _ in range(_MOST_ASKED):
            asking = self._asking.get(name)
            if asking is None:
                asking = self._asking[name] = asyncio.ensure_future(self._ask(name, self._known.get(name)))
                asking.add_done_callback(lambda ended: self._asked(name, ended))
            known = await asyncio.shield(asking)
            if name not in self._changed:
                break
        return known

    def _asked(self, name: str, ended: asyncio.Future[_Known]) -> None:
        self._asking.pop(name, None)
        self._asking_of.pop(name, None)
        if not ended.cancelled():
            ended.exception()  # all that waited may have hung up, and asyncio would log what none has seen

    async def _ask(self, name: str, before: _Known | None) -> _Known:
        self._changed.discard(name)  # what changes from now on is found out by the next request
        asked_s = self._clock()
        try:
            model = await self._described(name)
            manifest = parse_manifest(model.manifest, model.origin)
            framework = framework_of(manifest, model.format)
            of = manifest.artifact.model
            target = "" if of is None else await self._manifest_of(name, of)
            surroundings = await asyncio.to_thread(self._surroundings, manifest, framework)  # they lie on a disk
            deployment = self._shared(self._deployment(model, manifest, framework, surroundings, target))
        except ModelNotFoundError:
            self.forget(name)
            raise
        except BaseException:
            if name in self._known:  # others are asked for anyway, and clients may name as many as they like
                self._changed.add(name)
            raise
        if before is not None and self._is_over(name, before, deployment.key, model.key):
            self._retire(before.deployment.key)
        key, now_s = model.key or (before.key if before else ""), self._clock()
        self._known[name] = known = _Known(
            deployment, manifest, framework, surroundings, target, key, asked_s, looked_s=now_s, used_s=now_s
        )
        return known

    async def _manifest_of(self, name: str, of: str) -> str:
        """Return the manifest, as JSON, of the model whose artifact another one has."""
        self._asking_of[name] = of  # until the deployment is known
        try:
            return (await self._described(of)).manifest_json
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"{name!r} has the artifact of {of!r}, which is not registered; register that (`trims add`)"
            ) from error

    def _shared(self, deployment: Deployment) -> Deployment:
        """Return the deployment of another reference to the same version, if that is the same."""
        return next((each.deployment for each in self._known.values() if each.deployment == deployment), deployment)

    def _is_over(self, reference: str, before: _Known, key: DeploymentKey, image: str) -> bool:
        """Return whether predictors of what a reference led to are to end: no request will come to them."""
        if before.deployment.key == key:
            return _differ(before.key, image)
        now_s = self._clock()
        return not any(
            each.deployment.key == before.deployment.key and now_s - each.used_s <= _IN_USE_S
            for other, each in self._known.items()
            if other != reference
        )

    async def _described(self, reference: str) -> Model:
        """Ask the daemon. Raises DaemonAwayError also for one that hangs, because a request waits for this."""
        try:
            return await asyncio.wait_for(self._shown(reference), _PATIENCE_S)
        except asyncio.TimeoutError:
            raise DaemonAwayError(f"the daemon did not describe {reference!r} within {_PATIENCE_S:g} s") from None

    async def _shown(self, reference: str) -> Model:
        """Return what a reference leads to; an older daemon knows models by their names only."""
        try:
            return await self._daemon.show(reference)
        except ModelNotFoundError:
            name, version = split_reference(reference)
            model = await self._daemon.show(name) if version else None
            if model is None or model.reference or model.version != version:
                raise
            return model

    def knows(self, name: str) -> bool:
        """Return whether the model was registered when the daemon was asked last."""
        return any(name_of(reference) == name for reference in self._known)

    async def renew(self, name: str) -> Deployment:
        """Return the deployment as the daemon describes it now; predictors of the model end when they are idle.

        Raises as `of` does. If no daemon answers, nothing changes.
        """
        before, known = self._known.get(name), await self._fresh(name)
        if before is not None:
            self._retire(known.deployment.key)
        return known.deployment

    def forget(self, reference: str) -> None:
        """Let the predictors of a version end when they are idle, and ask the daemon again at the next request.

        Args:
            reference: A reference that requests name, or the version itself as `name@version`.

        Functions that have the artifact of the model end, too: they hold the same weights.
        """
        name, version = split_reference(reference)
        keys = {
            each.deployment.key
            for known, each in self._known.items()
            if known == reference or (name_of(known) == name and each.deployment.version == version)
        } | {self._known[each].deployment.key for each in self._referring((name,)) if each in self._known}
        for known in [known for known, each in self._known.items() if each.deployment.key in keys]:
            del self._known[known]
            self._changed.discard(known)
        for key in keys:
            self._retire(key)

    def make(self, model: Model) -> Deployment:
        """The deployment for a model as the daemon describes it. Looks at environments and code; call it from a worker.

        Raises NotSupportedError if nothing says what runs it, or no environment satisfies its manifest.
        """
        manifest = parse_manifest(model.manifest, model.origin)
        framework, known = framework_of(manifest, model.format), self._known.get(model.name)
        target = "" if known is None else known.target
        return self._deployment(model, manifest, framework, self._surroundings(manifest, framework), target)

    def _surroundings(self, manifest: Manifest, framework: str) -> tuple[Environment, str]:
        return self._environment(manifest, framework), code_identity(manifest)

    def _deployment(
        self, model: Model, manifest: Manifest, framework: str, surroundings: tuple[Environment, str], target: str
    ) -> Deployment:
        settings, (environment, code) = manifest.predictor, surroundings
        hashed = model.manifest_json + environment.python + code + target
        call, how = _predictor_of(model, manifest, framework)
        return Deployment(
            key=DeploymentKey(model.name, hashlib.sha256(hashed.encode()).hexdigest()[:12]),
            model=model.name,
            version=manifest.version,
            call=call,
            how=how,
            environment=environment,
            origin=model.origin,
            options=settings.options if how != HANDLER else {AS: FORMS[0], **settings.options},
            attributes=manifest.attributes,
            inputs=manifest.inputs,
            outputs=manifest.outputs,
            preprocess=manifest.preprocess,
            postprocess=manifest.postprocess,
            preload=settings.preload,
            home=str(manifest.residency.place or ""),
            instances=settings.instances or 1,
            grows=settings.instances is None,
            threads=settings.threads or self._processors,
            shares_processors=not settings.threads,
            batch=settings.max_batch_size,
            batch_delay_s=settings.batch_delay_s,
            priority_levels=settings.priority_levels,
            default_priority=settings.default_priority_level,
            keep_alive_s=settings.keep_alive_s,
            run_deadline_s=settings.deadline_s,
            hot=settings.hot,
            found=_found(model, manifest),
            is_plain=_is_ours(manifest) and not (manifest.preprocess or manifest.postprocess),
            opened_as=model.reference,
            versions=model.versions,
            variables=variables_of(model.name, settings.variables, self._variables),
            runs_own_code=_runs_own_code(manifest, framework),
        )

    def _environment(self, manifest: Manifest, framework: str) -> Environment:
        if not framework:
            return Environment("numpy")
        version = manifest.framework.version if manifest.framework is not None else ""
        python = self._picker.again(manifest.name, framework, version)
        return Environment(framework, "" if python is None else str(python))


def keeping(daemon: AsyncAdmin) -> Keep:
    """Return what has a daemon keep the inputs and outputs of a model's first run; see `WorkerPool.keep`."""

    async def keep(model: str, key: str, seen: Signature) -> None:
        try:
            inputs, outputs = (
                [TensorInfo(each.name, each.dtype, each.shape) for each in tensors]
                for tensors in (seen.inputs, seen.outputs)
            )
            await asyncio.wait_for(daemon.learn(model, key, inputs, outputs), _KEEP_S)
        except (TrimsError, asyncio.TimeoutError) as error:
            _log.info("%s: what its first run had is not kept: %s", model, str(error) or "the daemon did not answer")

    return keep


def _is_ours(manifest: Manifest) -> bool:
    """Return whether the predictor is the one that trims has for the framework."""
    settings = manifest.predictor
    return not (settings.call or settings.name or settings.function or settings.handler)


def _runs_own_code(manifest: Manifest, framework: str) -> bool:
    """Return whether loading a model may run code of a user. Modules and pickles of torch always may."""
    settings, options = manifest.predictor, manifest.artifact.options
    ours = _is_ours(manifest) and framework in _WITHOUT_CODE
    return not ours or bool(settings.preload or options.get("trust_remote_code") or manifest.artifact.allow_pickle)


def _found(model: Model, manifest: Manifest) -> Signature:
    """Return the inputs and outputs that the daemon knows of a model, without those that steps change."""
    if not _is_ours(manifest):
        return NO_SIGNATURE
    inputs = () if manifest.preprocess else types_of(asdict(each) for each in model.inputs)
    outputs = () if manifest.postprocess else types_of(asdict(each) for each in model.outputs)
    return Signature(inputs, outputs, model.tensors_seen)


def _differ(before: str, now: str) -> bool:
    """Return whether two image keys are of different images; an empty one is not known yet."""
    return bool(before and now) and before != now


def framework_of(manifest: Manifest, format_name: str) -> str:
    """The framework that runs a model; empty if nothing says it."""
    if (
        manifest.framework is None and manifest.predictor.handler
    ):  # whatever the model is, the handler gets it in the form that it names
        form = manifest.predictor.options.get(AS, FORMS[0])
        return "" if form == FORMS[0] else str(form)
    return framework_in(manifest, format_name)


def _predictor_of(model: Model, manifest: Manifest, framework: str) -> tuple[str, str]:
    """Return what a model's predictor is made from, and how; see `trims_predictors.frameworks.resolve.make`."""
    settings = manifest.predictor
    check_unread_options(model.name, settings, framework)
    if settings.handler:
        return os.path.join(model.origin, settings.handler), HANDLER
    if settings.name:
        return settings.name, PLUGIN
    if settings.function:
        return settings.function, FUNCTION
    return settings.call or _predictor_for(model, framework), CLASS


def _predictor_for(model: Model, framework: str) -> str:
    call = PREDICTORS.get(framework)
    if call is None:
        raise NotSupportedError(nothing_runs(model.name))
    return call
