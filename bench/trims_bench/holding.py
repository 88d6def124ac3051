"""Processes that have run a model and keep it: over weights from trims, or with those of the framework alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims_bench.child import environment, started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trims_bench.models import Shipped

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
    runs: int = 2,
) -> Iterator[list[int]]:
    """Several processes that have answered and stay, weights attached, until the block ends; yields their ids.

    Args:
        arrays: Architecture and framework that `trims_bench.models.inputs` makes requests for.
        python: Interpreter; this one by default.
        env: Variables beside the usual ones.
        artifact: File that the framework loads alone; None for weights from trims.
        runs: Times that each has answered.
    """
    given = {
        "model": {"name": model["name"], **{key: model["artifact"][key] for key in ("format", "options")}},
        "arrays": list(arrays),
        "runtime_dir": str(runtime_dir),
        "artifact": "" if artifact is None else str(artifact),
        "runs": runs,
    }
    with contextlib.ExitStack() as stack:
        variables = {**environment(), **(env or {})}
        processes = [stack.enter_context(started(hold, given, python=python, env=variables)) for _ in range(count)]
        yield [process.result() for process in processes]
        for process in processes:
            process.end()


def hold(model: dict[str, Any], arrays: list[str], runtime_dir: str, artifact: str, runs: int) -> Iterator[int]:
    """Yield the process's number once it has answered, and 0 at the end."""
    import trims

    architecture, framework = arrays
    with contextlib.ExitStack() as stack:
        weights: Any = None
        if not artifact:
            session = stack.enter_context(trims.connect(runtime_dir))
            session.prefetch(model["name"])  # it arrives while the framework is imported
        predictor, given, context = _prepared(model, architecture, framework, artifact)
        if not artifact:
            weights = stack.enter_context(session.open(model["name"]))
        predictor.load(weights, context)
        for _ in range(runs):
            predictor.predict(given)
        if weights is not None and model["options"].get("prepack") == "shared":
            predictor.rehearse(given)  # which goes over to the packed weights
        yield os.getpid()
        if weights is not None:
            predictor.unload()
    yield 0


def _prepared(model: dict[str, Any], architecture: str, framework: str, artifact: str) -> tuple[Any, Any, Any]:
    """Import the framework; return a predictor without weights, inputs for it, and its context."""
    from trims_predictors.api import Context
    from trims_predictors.frameworks import CLASS, alone, resolve

    from trims_bench.models import inputs

    call = _PREDICTORS[framework]
    if artifact:
        predictor: Any = alone.make(call, CLASS, "", {**model, "path": artifact})
    else:
        predictor = resolve.make(call, CLASS, "")
    given = inputs(architecture, framework, 32 if model["options"].get("module_args", {}).get("small") else 224)
    return predictor, given, Context(model["name"], threads=len(os.sched_getaffinity(0)))


def first_answer_ns(shipped: Shipped, artifact: Path, environments: Mapping[str, Path], *, alone: bool) -> int:
    """Nanoseconds from the start of a process to its first answer.

    Args:
        shipped: Model.
        environments: Interpreters of frameworks with an environment of their own.
        alone: Whether by its framework alone; else over a daemon of its own, which has read nothing of the model.
    """
    from trims_bench.daemon import DaemonProcess  # whose imports the environments of frameworks lack

    raw = shipped.raw()
    source = {key: value for key, value in raw["artifact"].items() if key in ("format", "options")}
    given = {**raw, "artifact": {"options": {}, **source, "path": str(artifact)}}
    settings = {"environments": ",".join(f"{name}={path}" for name, path in environments.items())}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trims-unseen-")))
        if not alone:
            daemon = stack.enter_context(DaemonProcess(folder, **(settings if environments else {})))
            daemon.register(given)
        began = time.perf_counter_ns()
        with held(
            1, model=given, arrays=(shipped.architecture, shipped.framework),
            runtime_dir=folder if alone else daemon.runtime_dir, python=environments.get(shipped.framework),
            artifact=artifact if alone else None, runs=1,
        ):  # fmt: skip
            return time.perf_counter_ns() - began
