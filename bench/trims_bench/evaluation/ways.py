"""Ways in which a process comes to answer a first request: a program of its own, a fork, or one that runs already."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from trims_predictors.children.worker_process import spawn
from trims_predictors.deployment.deployment import is_device, load_message, warm_message
from trims_predictors.frameworks.alone import why_not as why_not_alone
from trims_predictors.tensors import to_array

from trims.core.errors import PredictorError
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_predictors.children.launcher import Launcher
    from trims_predictors.children.worker_process import PredictorProcess
    from trims_predictors.deployment.deployment import Deployment
    from trims_predictors.tensors import Tensor
    from trims_predictors.warm.warm_pool import WarmPool

    from trims.wire.frames import Message

#: The framework without trims; a program of its own; a fork of a template; a fork made ahead, which on a device holds a
#: context and has run the model there; a predictor that has just answered once; one that has answered often, and then
#: nothing for a while.
ALONE, FRESH, TEMPLATE, SPARE, HOT, SETTLED = "alone", "fresh", "template", "spare", "hot", "settled"
WAYS = (ALONE, FRESH, TEMPLATE, SPARE, HOT, SETTLED)
#: Ways in which the predictor has loaded the model already.
RUNNING = (HOT, SETTLED)
#: Runs before a predictor rests to be settled.
_SETTLING_RUNS = 20
_LOAD_S, _RUN_S = 600.0, 600.0
#: Rounds in which a template learns, seconds for them, and between two looks whether it has.
_ROUNDS, _LEARNING_S, _LOOK_S = 3, 120.0, 0.05
#: Stages of a run in which the model computes.
_COMPUTING = ("preprocess_s", "predict_s", "postprocess_s")
#: Part of the largest value by which equal answers may differ, for types that are rounded.
_ROUNDED = {"FP64": 1e-9, "FP32": 1e-3, "FP16": 1e-2, "BF16": 5e-2}


class NoWayError(Exception):
    """A model cannot be started in a way; the message says why."""


class Starter:
    """Starts predictors of one deployment, and has them answer.

    Args:
        templates: Forks; without spares, so that each sample forks for itself.
        idle_s: Seconds that a predictor rests to be settled.
        artifact: Path, format and options of the model's artifact, for the framework alone.
    """

    def __init__(
        self, launcher: Launcher, templates: WarmPool, deployment: Deployment, inputs: Mapping[int, Sequence[Tensor]],
        *, idle_s: float, artifact: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._launcher = launcher
        self._templates = templates
        self._deployment = deployment
        self._inputs = inputs
        self._idle_s = idle_s
        self._artifact = artifact
        self._hot: PredictorProcess | None = None
        self._is_taught = False

    async def prepare(self, way: str, batch: int = 1) -> None:
        """Start, untimed, what a way presupposes: a template, or a predictor that has answered once."""
        await self.close()
        if way == ALONE:
            why = why_not_alone(self._deployment.call, self._deployment.how, str(self._artifact["format"]))
            if why:
                raise NoWayError(why)
        if way == TEMPLATE:
            await self._teach()
            process = await self._templates.take(self._deployment.environment)
            await process.end()
        elif way == SPARE:
            self._hot = await self._spare(batch)
        elif way in RUNNING:
            process = await self._templates.take(self._deployment.environment)
            try:
                await self._load(process)
                for _ in range(1 if way == HOT else _SETTLING_RUNS):
                    await self._run(process, batch)
                if way == SETTLED:
                    await asyncio.sleep(self._idle_s)
            except BaseException:
                process.kill("it could not be prepared")
                raise
            self._hot = process

    async def _spare(self, batch: int) -> PredictorProcess:
        """Return a process as an endpoint has them wait, where the model's weights lie now."""
        await self._teach()
        first = await self._templates.make(self._deployment.environment)
        try:
            loaded = await self._load(first)
            given = (await self._answer(first, batch)).get("given")
        finally:
            await first.end()
        spare = await self._templates.make(self._deployment.environment)
        if is_device(str(loaded["place"])):
            message = warm_message(self._deployment, loaded["image"], given)
            try:
                await spare.ask(message, deadline_s=_LOAD_S)
            except BaseException:
                spare.kill("it could not be warmed")
                raise
        return spare

    async def _teach(self) -> None:
        """Have the template learn what the model imports, once, as an endpoint's templates do."""
        until = asyncio.get_running_loop().time() + _LEARNING_S
        for _ in range(0 if self._is_taught else _ROUNDS):
            process = await self._templates.take(self._deployment.environment)
            try:
                imported = (await self._load(process))["imported"]
            finally:
                await process.end()
            environment, preload = self._deployment.environment, self._deployment.preload
            self._templates.preloads.want(environment, self._deployment.model, preload)
            self._templates.teach(environment, [*preload, *imported])
            if not self._templates.learning():
                break
            while self._templates.learning() and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(_LOOK_S)
        self._is_taught = True

    async def start(self, way: str, batch: int = 1) -> tuple[PredictorProcess, list[Tensor]]:
        """Have a process answer one request. Return it, and the outputs."""
        if way == SPARE or way in RUNNING:
            process, self._hot = self._hot, None
            assert process is not None, "prepare before start"
            try:
                if way == SPARE:
                    await self._load(process)
                return process, await self._run(process, batch)
            except BaseException:
                process.kill("its sample failed")
                raise
        with span("process"):
            if way in (ALONE, FRESH):
                process = spawn(self._launcher, self._deployment.environment)
            else:
                process = await self._templates.take(self._deployment.environment)
        try:
            if way == TEMPLATE and process.how != "forked":
                raise PredictorError(f"the predictor was {process.how}, not forked from a template")
            if way in (ALONE, FRESH):
                await self._import(process)
            await self._load(process, alone=way == ALONE)
            return process, await self._run(process, batch)
        except BaseException:
            process.kill("its sample failed")
            raise

    async def again(self, process: PredictorProcess, batch: int = 1) -> tuple[list[Tensor], float]:
        """Have a process that has answered answer once more. Return the outputs and the seconds it computed."""
        answer = await self._answer(process, batch)
        return answer["outputs"], sum(answer["stages"].get(name, 0.0) for name in _COMPUTING)

    async def _import(self, process: PredictorProcess) -> None:
        """Start Python and import what a template has imported already."""
        environment = self._deployment.environment
        message = {
            "op": "prepare", "modules": environment.modules(), "import": True, "threads": self._deployment.threads,
            "pages": [],
        }  # fmt: skip
        with span("prepare"):
            await process.ask(message, deadline_s=_LOAD_S)

    async def _load(self, process: PredictorProcess, *, alone: bool = False) -> Message:
        """Have a process load the model. Return its answer."""
        message = {**load_message(self._deployment), "record": False}
        with span("load model"):
            return await process.ask({**message, "alone": self._artifact} if alone else message, deadline_s=_LOAD_S)

    async def _run(self, process: PredictorProcess, batch: int) -> list[Tensor]:
        outputs: list[Tensor] = (await self._answer(process, batch))["outputs"]
        return outputs

    async def _answer(self, process: PredictorProcess, batch: int) -> Message:
        with span("run"):
            message = {"op": "predict", "threads": self._deployment.threads}
            return await process.ask(message, deadline_s=_RUN_S, tensors=self._inputs[batch])

    async def close(self) -> None:
        """End a predictor that was prepared and not used. Idempotent."""
        process, self._hot = self._hot, None
        if process is not None:
            await process.end()


def are_close(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether two answers are the same but for the rounding of another order of additions."""
    named = {tensor.name: tensor for tensor in other}
    if len(one) != len(named):
        return False
    return all(tensor.name in named and _are_close(tensor, named[tensor.name]) for tensor in one)


def _are_close(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype not in _ROUNDED:
        return bytes(one.data) == bytes(other.data)
    first, second = (to_array(each).astype(np.float64) for each in (one, other))
    scale = float(np.max(np.abs(first), initial=0.0, where=np.isfinite(first)))
    return bool(np.allclose(first, second, rtol=_ROUNDED[one.dtype], atol=_ROUNDED[one.dtype] * scale, equal_nan=True))


def digest_of(outputs: Sequence[Tensor]) -> str:
    """Return the sha256 of outputs with their names, types and shapes."""
    digest = hashlib.sha256()
    for tensor in sorted(outputs, key=lambda each: str(each.name)):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()
