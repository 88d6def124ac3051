"""One leveled evaluation from its order to its result: its processes and inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_predictors.children.launcher import Launcher
from trims_predictors.deployment.signatures import Signatures
from trims_predictors.evaluation.leveled import runs_at_levels
from trims_predictors.evaluation.session import made_inputs
from trims_predictors.evaluation.ways import Starter
from trims_predictors.warm.warm_pool import WarmPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trims.manifests.serving import TensorType
    from trims.trace.levels import Level
    from trims_predictors.deployment.deployments import Deployments
    from trims_predictors.evaluation.leveled import Leveled
    from trims_predictors.tensors import Tensor


async def evaluating_levels(
    deployments: Deployments,
    runtime_dir: str,
    trace_dir: Path,
    *,
    model: str,
    level: Level,
    repeats: int,
    make: Callable[[Sequence[TensorType]], list[Tensor]] | None,
) -> Leveled:
    """Run a model at each level from `model` down to a deeper one. This process must record everything.

    Args:
        deployments: Of the daemon's models.
        runtime_dir: Folder of the daemon's sockets.
        trace_dir: Where this process records.
        model: As registered.
        level: The deepest.
        repeats: Runs at each level.
        make: Makes the inputs of the requests, given the model's inputs; None for some from a seed.

    Raises CallerError if the model's inputs are not known and none are given.
    """
    deployment = await deployments.of(model)
    types = Signatures().described(deployment)[0]
    inputs = made_inputs(types, model) if make is None else make(types)
    launcher = Launcher(runtime_dir, plain=True)
    templates = WarmPool(launcher, spares=0, threads=deployment.threads, busy=lambda: True)
    starter = Starter(launcher, templates, deployment, inputs)
    try:
        return await runs_at_levels(starter, model, level, repeats, str(trace_dir))
    finally:
        await starter.close()
        await templates.close()
        launcher.close()
