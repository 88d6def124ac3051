"""The way of one grant through `core` and `store` stays short enough to follow."""

from __future__ import annotations

import importlib.util

import pytest
from repository import ROOT


def _tool(name: str) -> object:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("idle", "most_calls", "most_changes"), [(False, 10, 8), (True, 23, 13)])
def test_a_warm_grant_passes_few_calls_and_files(idle: bool, most_calls: int, most_changes: int) -> None:
    tool = _tool("grant_path")
    calls = tool.path_of_a_warm_grant(idle=idle)  # type: ignore[attr-defined]
    assert calls[0] == "store/opens.py:open"
    assert "core/residency/ledger.py:grant" in calls
    assert len(calls) <= most_calls, calls
    assert tool.changes_of_file(calls) <= most_changes, calls  # type: ignore[attr-defined]
