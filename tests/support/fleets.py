"""A pool over a daemon of the test, driven from tests that are no coroutines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from trims_predictors.deployment.deployment import Answer, Deployment, Settings
from trims_predictors.deployment.deployments import Deployments
from trims_predictors.pool.pool import WorkerPool
from trims_predictors.tensors import Tensor, from_array, to_array

from trims.control import aadmin, admin
from trims.formats.conversion.interpreter_selection import InterpreterSelection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from serving import Serving

    from trims.daemon.main import Daemon

SUPPORT = str(Path(__file__).parent)


def register(daemon: Daemon | Serving, checkpoint: Callable[..., Path], name: str = "m", **fields: Any) -> None:
    """Register a model whose only weight is `factor` = 2; `predictor`, `inputs` and so on as in a manifest."""
    path = checkpoint(name, {"factor": np.array(2.0)})
    manifest = {"name": name, "artifact": {"path": str(path)}, "framework": {"name": "numpy"}, **fields}
    with admin(daemon.config.runtime_dir) as control:
        control.add(manifest, replace=True, lazy=True)


class Driver:
    """A pool and the deployments of its daemon's models, inside one event loop."""

    def __init__(self, pool: WorkerPool, deployments: Deployments) -> None:
        self.pool = pool
        self.deployments = deployments

    async def ask(self, name: str = "m", wait_s: float | None = None, **arrays: Any) -> Answer:
        """One request."""
        tensors = [from_array(key, np.asarray(value)) for key, value in arrays.items()]
        return await self.pool.infer(await self.deployment(name), tensors, queue_deadline_s=wait_s)

    async def deployment(self, name: str = "m") -> Deployment:
        """The deployment of a model; its class may lie beside the tests' helpers."""
        import dataclasses

        return dataclasses.replace(await self.deployments.of(name), origin=SUPPORT)


def drive(
    daemon: Daemon,
    work: Callable[[Driver], Awaitable[Any]],
    environments: Mapping[str, Path] | None = None,
    **settings: Any,
) -> Any:
    """Run `work` with a pool of these settings, and end the pool.

    Without `most_instances` a model has one predictor, so that what a request finds does not depend on the time.
    """

    async def run() -> Any:
        async with aadmin(daemon.config.runtime_dir) as control:
            plain = {"spares": 0, "hot_spares": 0, "most_instances": 1}
            pool = WorkerPool(Settings(str(daemon.config.runtime_dir), **{**plain, **settings}))
            try:
                return await asyncio.wait_for(
                    work(Driver(pool, Deployments(control, InterpreterSelection(environments), pool.retire))), 120
                )
            finally:
                await pool.close(1.0)

    return asyncio.run(run())


def arrays(answer: Answer) -> Mapping[str, Any]:
    """The outputs as numpy arrays."""
    return {tensor.name: to_array(tensor) for tensor in answer.outputs}


def text(value: str) -> np.ndarray[Any, Any]:
    """A text as a tensor of one element."""
    return np.array([value.encode()], dtype=object)


__all__ = ["Driver", "Tensor", "arrays", "drive", "register", "text"]
