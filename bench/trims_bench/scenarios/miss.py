"""A model whose image is on disk and not in shared memory: from the open to a module that is ready, and its runs."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples
from trims_bench.scenarios.first_answer import KINDS, make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

TITLE = "a model that is on disk and not in shared memory: module ready, and its runs"
_READY = Bar("<=", 10.0)
_TITLES = ("GPT-2", "Llama, 300M")
_RUNS = 5
_WHAT = ("module ready", "first run", "steady run")
_NOTE = (
    "Fresh processes that have imported torch and the model's class, and connected. Memory is too small for the "
    "models, so an open maps the image on disk, which is in the page cache. The other side: the same image in shared "
    "memory. Runs are of 16 tokens with one thread; steady is the median of four more."
)


def run(setup: Setup) -> Figure:
    """Measure each model at both places, in turns."""
    figure = Figure("miss", TITLE, [], [_NOTE])
    with setup.scratch() as folder:
        manifests = dict(_manifests(setup, folder))
        room = setup.size(4 << 30, 64 << 20)
        with (
            setup.daemon(folder / "small", cpu_capacity_bytes=4096) as small,
            setup.daemon(folder / "large", cpu_capacity_bytes=room) as large,
        ):
            for title, manifest in manifests.items():
                small.add(manifest)
                large.add(manifest)
                large.load(manifest["name"], place="cpu")
                figure.comparisons += _compare(setup, title, manifest, small, large)
    return figure


def _manifests(setup: Setup, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in KINDS:
        if kind.title not in _TITLES or (setup.quick and kind.title != _TITLES[0]):
            continue
        shape = kind.small if setup.quick else kind.shape
        path = folder / kind.name[0]
        call(make, {"names": kind.name, "shape": shape, "folder": str(path)})
        names = dict(zip(("model", "config"), kind.name, strict=True))
        options = {"module": "trims_bench.builders.transformers_torch:build_module", "module_args": {**names, **shape}}
        artifact = {"path": str(path / "model.safetensors"), "options": options}
        yield kind.title, {"name": kind.name[0].lower(), "artifact": artifact, "residency": {"persist": "always"}}


def _compare(
    setup: Setup, title: str, manifest: dict[str, Any], small: DaemonProcess, large: DaemonProcess
) -> list[Comparison]:
    found: dict[str, list[list[int]]] = {"disk": [], "cpu": []}
    model = manifest["artifact"]["options"]["module_args"]["model"]
    for number in range(setup.uncounted + setup.repeats(9)):
        for place, daemon in (("disk", small), ("cpu", large)):
            given = {"runtime_dir": str(daemon.runtime_dir), "name": manifest["name"], "model": model, "place": place}
            taken = call(measure, given)
            if number >= setup.uncounted:
                found[place].append(taken)
    made = []
    for number, what in enumerate(_WHAT):
        ours, theirs = (Samples(f"{what}, {place}", [row[number] for row in rows]) for place, rows in found.items())
        if what == _WHAT[0]:
            made.append(Comparison(f"{title}: {what}", ours.median / 1e6, "ms", _READY, [ours, theirs]))
        else:
            ratio = ours.median / theirs.median
            made.append(Comparison(f"{title}: {what}, times memory's", ratio, "x", None, [ours, theirs]))
    return made


def measure(*, runtime_dir: str, name: str, model: str, place: str) -> list[int]:
    """Nanoseconds to the module, of the first run, and of a later one."""
    import torch

    import trims

    getattr(importlib.import_module("transformers"), model)
    torch.set_num_threads(1)
    with trims.connect(runtime_dir) as session:
        began = time.perf_counter_ns()
        weights = session.open(name)
        module = trims.torch.module(weights)
        ready = time.perf_counter_ns() - began
        assert weights.place == place, f"{name} lies at {weights.place}"
        runs = []
        tokens = torch.tensor([list(range(1000, 1016))])
        with torch.inference_mode():
            for _ in range(_RUNS):
                began = time.perf_counter_ns()
                module(tokens)
                runs.append(time.perf_counter_ns() - began)
        del module
        weights.close()
    return [ready, runs[0], sorted(runs[1:])[(_RUNS - 1) // 2]]
