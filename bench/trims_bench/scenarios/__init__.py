"""The figures, one module each: `TITLE`, and `run(setup) -> Figure`.

What is measured runs in a fresh process (`trims_bench.child`), sides take turns in it, and nothing is warmed that the
other side is not. Modules import their framework, and what drives daemons, inside functions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from trims_bench.figures import Figure
    from trims_bench.scenarios.base import Setup

#: Names in the order of the table in docs/benchmarks.md.
NAMES = (
    "open",
    "fresh",
    "arrival",
    "first_answer",
    "unseen",
    "predictor",
    "endpoint",
    "throughput",
    "late",
    "together",
    "many_models",
    "attach",
    "torch",
    "onnxruntime",
    "packed",
    "mxnet",
    "cold",
    "disk",
    "memory",
    "churn",
    "miss",
    "pressure",
    "plane",
    "behind",
    "books",
    "check_hold",
    "door",
    "crowd",
    "restart",
)


class Scenario(Protocol):
    """Module with one scenario: its title, and a function that runs it."""

    TITLE: str

    def run(self, setup: Setup) -> Figure:
        """Measure."""


def scenario(name: str) -> Scenario:
    """The module of this name, one of `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"no scenario {name!r}; there are {', '.join(NAMES)}")
    return cast("Scenario", importlib.import_module(f"trims_bench.scenarios.{name}"))
