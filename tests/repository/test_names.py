"""Every `trims.x.y` that docs, docstrings, comments and messages name is there."""

from __future__ import annotations

import importlib
import importlib.metadata
import re

import pytest
from repository import ROOT

NAMED = re.compile(r"`(trims(?:_client|_bench|_predictors)?(?:\.\w+)+)(?:\([^`]*\))?`")
#: Names of entry-point groups, not of modules.
GROUPS = {entry.group for entry in importlib.metadata.distribution("trims").entry_points}
#: Groups for the packages of others: ours names nothing in them.
GROUPS |= {"trims.predictors", "trims.sources", "trims.registries", "trims.reseed", "trims.loaders"}
#: Attributes of spans.
SPANS = ROOT / "predictors/trims_predictors/endpoint/observe/tracing.py"
ATTRIBUTES = set(re.findall(r'"(trims(?:\.\w+)+)":', SPANS.read_text()))
#: Written in its own environment only.
ELSEWHERE = {"trims.mxnet", "trims.cupy", "trims.vllm", "trims.sglang", "trims.lock", "trims.json"}


def named() -> dict[str, str]:
    """Each dotted name, and a file that has it."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]
    for package in ("trims", "client", "bench", "predictors", "examples"):
        files += ROOT.glob(f"{package}/**/*.py")
    found: dict[str, str] = {}
    for file in files:
        for name in NAMED.findall(file.read_text()):
            found.setdefault(name, str(file.relative_to(ROOT)))
    return found


def is_there(name: str) -> bool:
    """Return whether it can be imported, or reached from what can be."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        try:
            for part in parts[length:]:
                value = getattr(value, part)
        except AttributeError:
            return False
        return True
    return False


@pytest.mark.parametrize("name", sorted(named().keys() - GROUPS - ATTRIBUTES - ELSEWHERE))
def test_a_name_in_the_docs_is_one_of_the_code(name: str) -> None:
    assert is_there(name), named()[name]


def test_names_are_found_at_all() -> None:
    assert len(named()) > 30
    assert not is_there("trims.nonsense")
    assert not is_there("trims.core.errors.NonsenseError")
