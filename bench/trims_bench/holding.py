"""Processes that have run a model and keep it: over weights from trims, or with those of the framework alone."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from trims_bench.child import environment, started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Predictors of frameworks, by their names.
_PREDICTORS = {
    name: f"trims_predictors.frameworks.{name}:{kind}"
    for name, kind in (("torch", "TorchPredictor"), ("onnxruntime", "OnnxPredictor"), ("mxnet", "MxnetPredictor"))
}


@contextlib.contextmanager
def held(
    count: int,
    *,
    model: Mapping[str, Any],
    arrays: tuple[str, str],
    runtime_dir: Path,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
    artifact: Path | None = None,
) -> Iterator[list[int]]:
    """Several processes that have answered and stay, weights attached, until the block ends; yields their ids.

    Args:
        count: How many.
        model: Its manifest.
        arrays: Architecture and framework that `trims_bench.models.inputs` makes requests for.
        runtime_dir: Of the daemon.
        python: Interpreter; this one by default.
        env: Variables beside the usual ones.
        artifact: File that the framework loads alone; None for weights from trims.
    """
    given = {
        "model": {"name": model["name"], **{key: model["artifact"][key] for key in ("format", "options")}},
        "arrays": list(arrays),
        "runtime_dir": str(runtime_dir),
        "artifact": "" if artifact is None else str(artifact),
    }
    with contextlib.ExitStack() as stack:
        variables = {**environment(), **(env or {})}
        processes = [stack.enter_context(started(hold, given, python=python, env=variables)) for _ in range(count)]
        yield [process.result() for process in processes]
        for process in processes:
            process.end()


def hold(model: dict[str, Any], arrays: list[str], runtime_dir: str, artifact: str) -> Iterator[int]:
    """Yield the process's number once it has answered, and again at the end."""
    from trims_predictors.api import Context
    from trims_predictors.frameworks import alone, resolve

    import trims
    from trims_bench.models import inputs

    architecture, framework = arrays
    given = inputs(architecture, framework, 32 if model["options"].get("module_args", {}).get("small") else 224)
    call = _PREDICTORS[framework]
    with contextlib.ExitStack() as stack:
        context = Context(model["name"], threads=len(os.sched_getaffinity(0)))
        if artifact:
            predictor: Any = alone.make(call, resolve.CLASS, "", {**model, "path": artifact})
            weights: Any = None
        else:
            predictor = resolve.make(call, resolve.CLASS, "")
            weights = stack.enter_context(stack.enter_context(trims.connect(runtime_dir)).open(model["name"]))
        predictor.load(weights, context)
        for _ in range(2):
            predictor.predict(given)
        if weights is not None and model["options"].get("prepack") == "shared":
            predictor.rehearse(given)  # which goes over to the packed weights
        yield os.getpid()
        if weights is not None:
            predictor.unload()
    yield 0
