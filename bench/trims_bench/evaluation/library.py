"""Evaluations from Python: `trims.evaluate` does what `trims eval` does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from trims_predictors.tensors import from_array

from trims.core.errors import CallerError
from trims.trace.levels import Level
from trims_bench.evaluation.session import Place, Wish, evaluate_model
from trims_bench.evaluation.ways import WAYS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from trims_predictors.tensors import Tensor

    from trims.manifests.serving import TensorType
    from trims_bench.evaluation.records import Evaluated, Sample
    from trims_bench.evaluation.session import Progress


def evaluate(
    model: str = "",
    inputs: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] | None = None,
    *,
    tiers: Sequence[str] = ("file", "disk", "cpu"),
    ways: Sequence[str] = WAYS,
    repeats: int = 10,
    batches: Sequence[int] = (1,),
    idle_s: float = 2.0,
    level: str = "model",
    resume: str = "",
    database: str = "",
    runtime_dir: str | None = None,
    environments: Mapping[str, Path] | None = None,
    progress: Progress | None = None,
) -> Evaluated:
    """Measure where the time of a model's start goes, from each tier, in each way.

    Example:
        found = trims.evaluate("resnet50", tiers=["cpu"], ways=["template", "hot"], repeats=5)
        for sample in found.samples:
            print(sample.tier, sample.way, sample.seconds, dict(sample.stages))

    Args:
        model: Registered name; empty to go on with an evaluation.
        inputs: Arrays of each request by name; None for some that are made from a stated seed.
        tiers: Tiers to start from: `file`, `disk`, `cpu`, `gpu`.
        ways: Ways to start in: `alone`, `fresh`, `template`, `spare`, `hot`, `settled`.
        repeats: Samples of each.
        batches: Sizes of requests to a predictor that runs already.
        idle_s: Seconds that a predictor rests to be settled.
        level: Deepest level at which a predictor that runs already is looked at, such as `framework`.
        resume: Beginning of the id of the evaluation to go on with.
        database: URL of the database; empty for the default.
        runtime_dir: Folder of the daemon's sockets; None for this user's.
        environments: Interpreters of frameworks with an environment of their own.
        progress: Called with the samples taken, those there will be, and the newest one.

    Raises:
        CallerError: What is asked cannot be, or the model's inputs are not known.
        BusyError: Another evaluation runs on this machine.
        TrimsError: The daemon or the database refuse.
    """

    def given(types: Sequence[TensorType]) -> list[Tensor]:
        unknown = sorted(set(inputs or {}) - {each.name for each in types}) if types else []
        if unknown:
            raise CallerError(
                f"{model} has no input {unknown[0]!r:.80}; it has {', '.join(each.name for each in types)}"
            )
        return [from_array(name, array) for name, array in (inputs or {}).items()]

    wish = Wish(
        model, resume, tuple(tiers), tuple(ways), repeats, tuple(batches), idle_s,
        _level(level), make_inputs=None if inputs is None else given,
    )  # fmt: skip
    place = Place(runtime_dir, environments, database=database)
    work = partial(_run, wish, place, progress or _silent)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, "trims-evaluate") as thread:  # in a notebook, whose loop waits meanwhile
        return thread.submit(work).result()


def _run(wish: Wish, place: Place, progress: Progress) -> Evaluated:
    return asyncio.run(evaluate_model(wish, place, progress))


def _level(text: str) -> Level:
    try:
        return Level.parse(text)
    except ValueError as error:
        raise CallerError(str(error)) from error


def _silent(done: int, total: int, sample: Sample) -> None:
    """Report nothing."""
