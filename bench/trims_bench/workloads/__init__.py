"""Workloads of the demo and the benchmarks: one module for each model, all with the same functions.

    prepare(trace)                     import the framework (stage `import`)
    framework_alone(artifact, trace)   the framework's own way from the published file to an answer
    with_trims(weights, trace)         the same answer from attached weights
    same(one, other)                   how far two answers agree, and whether that counts as the same

`trace` is a `trims_bench.stages.Stages`; stages are `import`, `load`, `first inference`. Every function may
run in a process of its own, in the environment of the model's framework. Modules import their framework
inside functions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from trims_client.weights import Weights

    from trims_bench.answers import Agreement, Answer
    from trims_bench.stages import Stages

NAMES = ("minilm", "resnet50", "resnet50_mxnet", "resnet50_torch", "vgg16")


class Workload(Protocol):
    """The functions above; a module is one."""

    def prepare(self, trace: Stages) -> None:
        """Import the framework."""

    def framework_alone(self, artifact: Path, trace: Stages) -> Answer:
        """Return the answer of the framework's own way, from the published file."""

    def with_trims(self, weights: Weights, trace: Stages) -> Answer:
        """Return the answer from attached weights."""

    def same(self, one: Answer, other: Answer) -> Agreement:
        """Return how far two answers agree."""


def workload(name: str) -> Workload:
    """The module of this name, one of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"no workload {name!r}; there are {', '.join(NAMES)}")
    return cast("Workload", importlib.import_module(f"trims_bench.workloads.{name}"))
