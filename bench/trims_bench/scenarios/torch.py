"""PyTorch: from nothing but the imported framework to a module that is ready to infer."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster
from trims_bench.turns import take_turns

if TYPE_CHECKING:
    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

TITLE = "PyTorch module ready, against building it, `torch.load` and `load_state_dict`"


@dataclass(frozen=True, slots=True)
class Case:
    """One model: its builder's module, which also has `build_module`; how much faster it must be ready."""

    title: str
    name: str
    builder: str
    bar: float

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the manifest as a user would write it."""
        builder = {"call": f"{self.builder}:build", "args": {"seed": 7}}
        options = {"module": f"{self.builder}:build_module"}
        return {"name": self.name, "artifact": {"format": "torch", "builder": builder, "options": options}}


RESNET50 = Case("ResNet-50", "resnet50-torch", "trims_bench.builders.resnet50_torch", 50)
BERT_BASE = Case("BERT-base", "bert-base-torch", "trims_bench.builders.bert_base_torch", 100)


def run(setup: Setup) -> Figure:
    """Measure each model in fresh processes, one way each, in turns; and again and again in one process."""
    cases = (RESNET50,) if setup.quick else (RESNET50, BERT_BASE)
    with setup.daemon() as daemon:
        compared = [each for case in cases for each in _compare(case, setup, daemon)]
    notes = [
        "Weights are resident; `torch.load` reads from the page cache, with weights_only=True.",
        "In a fresh process the framework and the model's code are imported before, and the session is connected.",
    ]
    return Figure("torch", TITLE, compared, notes)


def _compare(case: Case, setup: Setup, daemon: DaemonProcess) -> list[Comparison]:
    from trims_bench.runs import artifact_of

    daemon.load(daemon.add(case.manifest))
    path = str(artifact_of(case.manifest, setup.state_dir))
    given = {"runtime_dir": str(daemon.runtime_dir), "name": case.name, "builder": case.builder, "path": path}
    again = call(measure_again, {**given, "count": setup.repeats(9)})
    first: dict[str, list[list[int]]] = {"trims": [], "torch": []}
    for _ in range(setup.repeats(7)):
        for way, taken in first.items():
            taken.append(call(measure_first, {**given, "way": way}))
    build = Samples("build + load", [sum(taken) for taken in first["torch"]])
    ready = Samples("open + module", [taken[1] for taken in first["trims"]])
    whole = Samples("import trims .. module", [sum(taken) for taken in first["trims"]])
    repeated = (Samples("open + module", again["trims"]), Samples("build + load", again["torch"]))
    return [
        faster(f"{case.title}, fresh process", ready, build, Bar(">=", case.bar)),
        faster(f"{case.title}, again in one process", *repeated, None),
        faster(f"{case.title}, fresh, with import and connect", whole, build, None),
    ]


def measure_first(runtime_dir: str, name: str, builder: str, path: str, way: str) -> list[int]:
    """Return nanoseconds to connect, and then to the module, in a process that has torch and the model's code."""
    import torch

    build_module = importlib.import_module(builder).build_module
    began = time.perf_counter_ns()
    if way == "torch":
        made = build_module()
        made.load_state_dict(torch.load(path, weights_only=True))
        return [0, time.perf_counter_ns() - began]
    import trims

    session = trims.connect(runtime_dir)
    connected = time.perf_counter_ns()
    weights = session.open(name)
    from trims_client.frameworks.torch import module

    made = module(weights)
    return [connected - began, time.perf_counter_ns() - connected]


def measure_again(runtime_dir: str, name: str, builder: str, path: str, count: int) -> dict[str, list[int]]:
    """Return nanoseconds to a module with its weights, both ways, in one process; both end with the same weights."""
    import torch
    from trims_client.frameworks.torch import module

    import trims

    build_module = importlib.import_module(builder).build_module

    def over_trims() -> torch.nn.Module:
        with session.open(name) as weights:
            return module(weights)

    def alone() -> torch.nn.Module:
        made = build_module()
        made.load_state_dict(torch.load(path, weights_only=True))
        return made

    with trims.connect(runtime_dir) as session:
        ours, theirs = over_trims().state_dict(), alone().state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        del ours, theirs
        return take_turns({"trims": over_trims, "torch": alone}, count)
