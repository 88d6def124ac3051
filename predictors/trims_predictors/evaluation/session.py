"""One evaluation from its order to its samples: processes, inputs, and the file that it can go on from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from trims.core.errors import CallerError
from trims.manifests.serving import ANY_RANK
from trims_predictors.children.launcher import Launcher
from trims_predictors.deployment.signatures import Signatures
from trims_predictors.evaluation.evaluation import Evaluation, starts
from trims_predictors.evaluation.journal import Asked, new_id
from trims_predictors.evaluation.stack import stack
from trims_predictors.evaluation.ways import Starter
from trims_predictors.tensors import from_array, numpy_dtype
from trims_predictors.warm.warm_pool import WarmPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trims.control import AsyncAdmin
    from trims.manifests.serving import TensorType
    from trims_predictors.deployment.deployments import Deployments
    from trims_predictors.evaluation.evaluation import Sample
    from trims_predictors.evaluation.journal import Journal
    from trims_predictors.tensors import Tensor

_SEED = 1


async def evaluating(
    daemon: AsyncAdmin,
    deployments: Deployments,
    journal: Journal,
    runtime_dir: str,
    trace_dir: Path,
    *,
    model: str | None,
    resume: str | None,
    tiers: tuple[str, ...],
    ways: tuple[str, ...],
    repeats: int,
    make: Callable[[Sequence[TensorType]], list[Tensor]] | None,
    progress: Callable[[int, int, Sample], None],
) -> tuple[Asked, list[Sample], dict[str, str]]:
    """Evaluate a model, or go on with an evaluation.

    Args:
        daemon: Its control door.
        deployments: Of its models.
        journal: Takes the samples.
        runtime_dir: Folder of the daemon's sockets.
        trace_dir: Where this process and the daemon record.
        model: As registered; None to go on.
        resume: Id of the evaluation to go on with; None for a new one.
        tiers: To start from.
        ways: To start in.
        repeats: Samples of each tier and way.
        make: Makes the inputs of the requests, given the model's inputs; None for some from a seed.
        progress: Called with each sample, how many there are now, and how many there will be.

    Returns:
        What was asked, all samples, and the tiers that could not be brought about with the reasons.

    Raises:
        CallerError: There is nothing to go on with, or the model has changed since; or its inputs are not known.
    """
    samples: list[Sample] = []
    asked: Asked | None = None
    if resume is not None:
        asked, samples = journal.go_on(resume)
        model = asked.model
    assert model is not None, "a model or an evaluation"
    deployment = await deployments.of(model)
    types = Signatures().described(deployment)[0]
    inputs = made_inputs(types, model) if make is None else make(types)
    if asked is None:
        asked = Asked(new_id(), model, str(deployment.key), tiers, ways, repeats, time.time(), stack())
        journal.begin(asked)
    elif str(deployment.key) != asked.key:
        raise CallerError(f"{model} has changed since evaluation {asked.id}; begin a new one")
    launcher = Launcher(runtime_dir, plain=True)
    templates = WarmPool(launcher, spares=0, threads=deployment.threads, busy=lambda: True)
    starter = Starter(launcher, templates, deployment, inputs)
    total = len(starts(asked.tiers, asked.ways)) * asked.repeats

    def keep(sample: Sample) -> None:
        journal.add(sample)
        samples.append(sample)
        progress(len(samples), total, sample)

    evaluation = Evaluation(daemon, asked.model, starter, str(trace_dir), keep)
    try:
        done = frozenset((each.tier, each.way, each.number) for each in samples)
        await evaluation.run(asked.tiers, asked.ways, asked.repeats, done)
    finally:
        await starter.close()
        await templates.close()
        launcher.close()
    return asked, samples, evaluation.unreachable


def made_inputs(types: Sequence[TensorType], model: str) -> list[Tensor]:
    """Return inputs for a request, the same each time: normal numbers, zeros where numbers are whole, empty texts.

    Raises CallerError if the model's inputs, or the number of their dimensions, are not known.
    """
    if not types:
        raise CallerError(f"the inputs of {model} are not known; give some as for `trims run`")
    random, made = np.random.default_rng(_SEED), []
    for each in types:
        if each.shape == (ANY_RANK,):
            raise CallerError(f"the input {each.name!r} of {model} may have any number of dimensions; give one")
        shape = tuple(max(1, length) for length in each.shape)
        if each.dtype == "BYTES":
            made.append(from_array(each.name, np.full(shape, b"", dtype=object)))
        else:
            values = (
                random.standard_normal(shape) if each.dtype in ("FP16", "FP32", "FP64", "BF16") else np.zeros(shape)
            )
            made.append(from_array(each.name, values.astype(numpy_dtype(each.dtype))))
    return made
