"""Invocations of a handler on this machine: cold ones, warm ones, and one in a fresh Python process to compare.

A cold invocation begins with no process and ends with the answer. Its process is forked from a template that has
imported the framework, as the endpoint's predictors are. What the first one had to import beside that, the template
learns as the endpoint's do (`call_templates`), so the first cold invocation and the later ones are apart. A fresh
process has to import everything itself.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.control import aadmin
from trims.core.errors import DeadlineError, PredictorError
from trims.manifests.manifest import parse_manifest
from trims_predictors.children.launcher import Environment, Launcher
from trims_predictors.children.worker_process import spawn
from trims_predictors.cli.call_templates import CallTemplates
from trims_predictors.deployment.cpu_shares import processors
from trims_predictors.deployment.deployment import Deployment, load_message
from trims_predictors.deployment.deployments import framework_of
from trims_predictors.deployment.variables import listed_variables, variables_of
from trims_predictors.frameworks import ANSWER, AS, EVENT, HANDLER
from trims_predictors.tensors import Tensor, join_bytes, to_array

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from trims.control import Model
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims_predictors.children.worker_process import PredictorProcess

#: Seconds between the kill of a process and its end.
_BURIAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Call:
    """Handler, model and event to invoke, and how often.

    Attributes:
        runtime_dir: Folder of the daemon's sockets.
        handler: `path/of/file.py:function`, absolute.
        model: A registered model.
        form: What the handler gets it as: one of `FORMS`.
        event: JSON; or the parts of a CloudEvent (`CloudEvent.elements`).
        repeat: Warm invocations after the cold one.
        compare: Whether the handler runs in a fresh Python process, too.
        timeout_s: Seconds that the handler may take to get ready, and to answer one event.
        preload: Modules that the template imports beside the framework.
        picker: Says which environment a framework runs in.
        cold_repeat: Cold invocations after the first one.
    """

    runtime_dir: str
    handler: str
    model: str
    form: str
    event: Sequence[bytes]
    repeat: int
    compare: bool
    timeout_s: float
    preload: tuple[str, ...]
    picker: InterpreterSelection
    cold_repeat: int = 0


@dataclass(frozen=True, slots=True)
class Invocation:
    """One answered event.

    Attributes:
        answer: JSON.
        start: What the process was before: `forked`, `spawned` (a fresh Python process) or `running`.
        total_s: Seconds from no process, or from the event if there was one, to the answer.
        stages: Seconds: `process_s` until the process takes orders, `connect_s`, `open_s`, `import_s` of the handler's
            file, `load_s` until the model is what the handler gets, `handler_s`, and `other_s` between the processes.
        resident: Whether the weights were there already; None for a warm one.
    """

    answer: bytes
    start: str
    total_s: float
    stages: Mapping[str, float]
    resident: bool | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Invoked:
    """Invocations of one call.

    Attributes:
        template_s: Seconds to start the template and to import in it: once for all functions of a machine.
        not_imported: Modules to preload that the template could not import.
        unfit: Why the template could not be forked, so that the cold invocation has a fresh process; None if it could.
        cold: The first one.
        fresh: The invocation to compare with, if it was asked for.
        later: Cold invocations after the first one.
        learned: Modules that the first process had to import, and the template has learned for the later ones.
        not_learned: Why the template could not learn them; None if it could, or if there were none.
        unlearned: How many there are that no template was given, because no later invocation would have had them.
        knew: How many modules earlier commands, or the endpoint, had learned.
        forgot: Why these were left out; None if they were not.
    """

    template_s: float
    not_imported: tuple[str, ...]
    unfit: str | None
    cold: Invocation
    warm: tuple[Invocation, ...]
    fresh: Invocation | None
    later: tuple[Invocation, ...] = ()
    learned: tuple[str, ...] = ()
    not_learned: str | None = None
    unlearned: int = 0
    knew: int = 0
    forgot: str | None = None


def invoke(call: Call) -> Invoked:
    """Invoke a handler as the call says.

    Raises:
        DeadlineError: The invocation took longer than the call allows.
        PredictorError: The handler raised, ended its process, or returned what JSON cannot hold.
        NotSupportedError: There is no such handler, or the model cannot be had in that form.
        TrimsError: The model cannot be opened: what the daemon says.
    """
    return asyncio.run(_invoke(call))


async def _invoke(call: Call) -> Invoked:
    async with aadmin(call.runtime_dir) as daemon:
        deployment = _deployment(call, await daemon.show(call.model))
        state_dir = Path((await daemon.status()).health.state_dir)
    launcher = Launcher(call.runtime_dir, plain=True)
    try:
        templates = CallTemplates(launcher, deployment.environment, call.preload, state_dir)
        try:
            await templates.begin()
            return await _measured(call, deployment, launcher, templates)
        finally:
            await templates.close()
    finally:
        launcher.close()


async def _measured(call: Call, deployment: Deployment, launcher: Launcher, templates: CallTemplates) -> Invoked:
    first = templates.serving
    cold, warm, imported = await _cold_and_warm(call, deployment, templates)
    new = [] if first.unfit else templates.new_of(imported, os.path.dirname(call.handler))
    learns = bool(new) and (call.cold_repeat > 0 or templates.keeps)
    not_learned = await templates.learn(new) if learns else None
    learned = tuple(name for name in new if learns and not not_learned and name not in templates.serving.failed)
    later = [await _cold(call, deployment, templates) for _ in range(call.cold_repeat)]
    return Invoked(
        template_s=templates.started_s,
        not_imported=tuple(sorted(first.failed.keys() & set(call.preload))),
        unfit=first.unfit,
        cold=cold,
        warm=warm,
        fresh=await _fresh(call, deployment, launcher) if call.compare else None,
        later=tuple(later),
        learned=learned,
        not_learned=not_learned,
        unlearned=0 if learns else len(new),
        knew=len(templates.knew),
        forgot=templates.forgot,
    )


def _deployment(call: Call, model: Model) -> Deployment:
    """Return the deployment of the handler. What the manifest says of its own predictor does not count here."""
    manifest = parse_manifest(model.manifest, model.origin)
    stated = framework_of(manifest, model.format)
    framework = stated or "numpy" if call.form == "weights" else call.form
    version = manifest.framework.version if manifest.framework and manifest.framework.name == framework else ""
    python = None if framework == "numpy" else call.picker.pick(model.name, framework, version)
    from trims_predictors.deployment.key import DeploymentKey

    return Deployment(
        key=DeploymentKey(""),
        model=model.name,
        version=manifest.version,
        opened_as=model.opened_as,
        call=call.handler,
        how=HANDLER,
        environment=Environment(framework, "" if python is None else str(python)),
        options={AS: call.form},
        attributes=manifest.attributes,
        threads=manifest.predictor.threads or processors(),
        variables=variables_of(model.name, manifest.predictor.variables, listed_variables()),
    )


async def _cold_and_warm(
    call: Call, deployment: Deployment, templates: CallTemplates
) -> tuple[Invocation, tuple[Invocation, ...], list[str]]:
    """Return the first invocation, those of the same process after it, and the modules that the process imported."""
    began = time.perf_counter()
    process = await templates.fork()
    async with _ending(process):
        cold, imported = await _first(call, deployment, process, began)
        return cold, tuple([await _again(call, process) for _ in range(call.repeat)]), imported


async def _cold(call: Call, deployment: Deployment, templates: CallTemplates) -> Invocation:
    began = time.perf_counter()
    process = await templates.fork()
    async with _ending(process):
        return (await _first(call, deployment, process, began))[0]


async def _fresh(call: Call, deployment: Deployment, launcher: Launcher) -> Invocation:
    began = time.perf_counter()
    process = spawn(launcher, deployment.environment)
    async with _ending(process):
        return (await _first(call, deployment, process, began))[0]


@asynccontextmanager
async def _ending(process: PredictorProcess) -> AsyncIterator[None]:
    """End the process with the block: in order if the block has succeeded, else at once."""
    try:
        yield
        await process.end()
    finally:
        process.kill("the command ends")
        await asyncio.wait([process.ended], timeout=_BURIAL_S)
        process.abandon()


async def _first(
    call: Call, deployment: Deployment, process: PredictorProcess, began: float
) -> tuple[Invocation, list[str]]:
    """Return the first invocation of a process, and the modules that it imported until the model was ready."""
    loaded = await _ask(call, process, load_message(deployment), "was not ready")
    ready = time.perf_counter()
    answer, stages = await _event(call, process)
    total_s = time.perf_counter() - began
    starts: Mapping[str, float] = loaded["stages"]
    first = {"process_s": max(0.0, ready - began - sum(starts.values())), **starts, **stages}
    cold = Invocation(answer, process.how, total_s, _whole(first, total_s), loaded["warm"], loaded["place"])
    return cold, [str(name) for name in loaded["imported"]]


async def _again(call: Call, process: PredictorProcess) -> Invocation:
    began = time.perf_counter()
    answer, stages = await _event(call, process)
    total_s = time.perf_counter() - began
    return Invocation(answer, "running", total_s, _whole(stages, total_s))


async def _event(call: Call, process: PredictorProcess) -> tuple[bytes, Mapping[str, float]]:
    """Have one event answered: the answer and the handler's time."""
    event = Tensor(EVENT, "BYTES", (len(call.event),), join_bytes(call.event))
    found = await _ask(call, process, {"op": "predict"}, "did not answer", [event])
    (answer,) = found["outputs"]
    if answer.name != ANSWER:
        raise PredictorError(f"{call.handler} answered nonsense: a tensor {answer.name!r:.80}")
    return bytes(to_array(answer).ravel()[0]), {"handler_s": found["stages"]["predict_s"]}


async def _ask(
    call: Call, process: PredictorProcess, message: dict[str, Any], late: str, tensors: list[Tensor] | None = None
) -> dict[str, Any]:
    try:
        return await process.ask(message, deadline_s=call.timeout_s, tensors=tensors)
    except DeadlineError as error:
        raise DeadlineError(
            f"{call.handler} {late} within {call.timeout_s:g} s, and was ended; allow it more (--timeout)"
        ) from error
    except PredictorError as error:
        raise PredictorError(f"{call.handler}: {error}", raised=error.raised) from error


def _whole(stages: Mapping[str, float], total_s: float) -> Mapping[str, float]:
    return {**stages, "other_s": max(0.0, total_s - sum(stages.values()))}
