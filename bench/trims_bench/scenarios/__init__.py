"""Scenarios: one module each, with `PARTS`: the name of each figure -> its title and what measures it.

What is measured runs in a fresh process (`trims_bench.child`) or by an evaluation, sides take turns in it, and nothing
is warmed that the other side is not. Modules import their framework, and what drives daemons, inside functions.

Door: `base`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims_bench.measuring import Figure
    from trims_bench.scenarios.base import Setup

#: Names in the order of the table in docs/benchmarks.md.
NAMES = (
    "client", "bytes", "starts", "requests", "functions", "load", "waiting", "room", "memory", "sessions", "registered",
    "behind", "books", "door", "restart", "traces", "cloud", "folders", "programs", "loaders",
)  # fmt: skip


class Part(NamedTuple):
    """One figure of a scenario: its title, and a function that measures it."""

    title: str
    run: Callable[[Setup], Figure]


def parts_of(scenario: str) -> Mapping[str, Part]:
    """Return the parts of one of `NAMES`, by the names of their figures."""
    parts: Mapping[str, Part] = importlib.import_module(f"trims_bench.scenarios.{scenario}").PARTS
    return parts


def parts() -> dict[str, tuple[str, Part]]:
    """Return all figures: name -> its scenario, and the part."""
    return {name: (scenario, part) for scenario in NAMES for name, part in parts_of(scenario).items()}


def chosen(names: Sequence[str]) -> dict[str, tuple[str, Part]]:
    """Return the parts that names of scenarios or parts stand for, `all` for all. Raises ValueError for others."""
    known = parts()
    for name in names:
        if name != "all" and name not in NAMES and name not in known:
            raise ValueError(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}, and all")
    wanted = set(names)
    return {name: each for name, each in known.items() if wanted & {"all", name, each[0]}}
