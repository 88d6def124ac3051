"""Running `trims_bench.worker` in fresh processes, and finding what it is to run on."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.formats.conversion.build import RECORD
from trims.manifests.manifest import Manifest, parse_manifest
from trims.process.python import run_module
from trims.registry.base import read_manifest
from trims_bench.answers import Answer
from trims_bench.repository import MANIFESTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_END_S = 10.0
_ERROR_TAIL = 1500


class WorkerError(Exception):
    """A worker ended without a report; the message carries its last words."""


@dataclass(frozen=True, slots=True)
class Model:
    """One of the demo's models.

    Attributes:
        name: As registered.
        workload: What to do with it, one of `trims_bench.workloads.NAMES`.
        title: For people.
    """

    name: str
    workload: str
    title: str

    @property
    def manifest(self) -> Path:
        """Return the path of the model's manifest in the checkout."""
        return MANIFESTS / f"{self.name}.yaml"


MODELS = (
    Model("minilm-l6-v2", "minilm", "all-MiniLM-L6-v2, PyTorch"),
    Model("resnet50", "resnet50", "ResNet-50, ONNX Runtime"),
    Model("vgg16", "vgg16", "VGG-16, MXNet"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a worker; times in seconds, from the start of its process.

    Attributes:
        stages_s: Stage -> seconds, in order.
        total_s: To the answer.
    """

    stages_s: Mapping[str, float]
    total_s: float
    answer: Answer

    @property
    def ready_s(self) -> float:
        """Return the seconds to have the model, once the framework is there: `connect`, `open` and `load`."""
        return sum(self.stages_s.get(stage, 0.0) for stage in ("connect", "open", "load"))


def artifact_of(manifest: Path | Mapping[str, Any], state_dir: Path) -> Path:
    """The published file a manifest names, or what its builder made for the daemon with this state folder."""
    raw, origin = read_manifest(manifest) if isinstance(manifest, Path) else (dict(manifest), "")
    source = parse_manifest(raw, origin).artifact
    if source.path is not None:
        return Path(origin) / source.path
    if source.package is not None:
        package, path = source.package
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"the Python package {package!r} is not installed; pip install 'trims[demo]'")
        return Path(spec.submodule_search_locations[0], path)
    return _built(parse_manifest(raw, origin), state_dir)


def _built(manifest: Manifest, state_dir: Path) -> Path:
    builder = manifest.artifact.builder
    assert builder is not None, "a manifest has a source"
    for record in (state_dir / "artifacts").glob(f"{manifest.name}-*/{RECORD}"):
        made = json.loads(record.read_text())
        if made["call"] == builder.call and made["args"] == dict(builder.args):
            return record.with_name(made["main"])
    raise FileNotFoundError(f"{manifest.name} was not built under {state_dir}; add it to a daemon with that folder")


def environment() -> dict[str, str]:
    """Return the environment of both sides: bytecode is used, nothing is fetched or reported over the network."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def run(workload: str, how: str, *, python: Path | None = None, runtime_dir: Path | None = None) -> Report:
    """One workload in one fresh process. Raises WorkerError."""
    with _started(workload, how, python, runtime_dir, hold=False) as process:
        return _report(process)


@contextlib.contextmanager
def held(
    workload: str,
    how: str,
    count: int,
    *,
    python: Path | None = None,
    runtime_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[int]]:
    """Several processes that have answered and stay, weights attached, until the block ends; yields their ids."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(_started(workload, how, python, runtime_dir, hold=True, env=env)) for _ in range(count)
        ]
        for process in started:
            _report(process)
        yield [process.pid for process in started]


@contextlib.contextmanager
def _started(
    workload: str,
    how: str,
    python: Path | None,
    runtime_dir: Path | None,
    *,
    hold: bool,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    command = run_module("trims_bench.worker", "--workload", workload, "--how", how, python=python or "")
    command += ["--runtime-dir", str(runtime_dir)] if runtime_dir else []
    command += ["--hold"] if hold else []
    command += ["--started-ns", str(time.monotonic_ns())]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), **(env or {})},
    )
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    finally:
        _end(process)


def _report(process: subprocess.Popen[str]) -> Report:
    """Wait for the worker's line. What else it may print before is its framework's."""
    assert process.stdout is not None, "a pipe"
    for line in process.stdout:
        if line.startswith("{"):
            raw = json.loads(line)
            return Report(raw["stages_s"], raw["total_s"], Answer.from_json(raw["answer"]))
    assert process.stderr is not None, "a pipe"
    words = process.stderr.read().strip()[-_ERROR_TAIL:]
    raise WorkerError(f"{' '.join(process.args)} ended without an answer: {words}")  # type: ignore[arg-type]


def _end(process: subprocess.Popen[str]) -> None:
    """Close its input, which ends a holding worker; kill it if that does not."""
    try:
        process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
