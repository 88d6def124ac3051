"""Modules that manifests ask for in vain are reported, once for each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_predictors.children.launcher import Environment
from trims_predictors.warm.preload_failures import Preloads

if TYPE_CHECKING:
    import pytest

ONE, OTHER = Environment("numpy"), Environment("torch")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Models and modules of the warnings since the last call."""
    found = [" ".join(map(str, each.args[:2])) for each in caplog.records if isinstance(each.args, tuple)]
    caplog.clear()
    return found


def test_a_module_that_was_asked_for_before_or_after_its_ban_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    preloads = Preloads()
    preloads.want(ONE, "before", ["m", "fine"])
    assert told(caplog) == []
    preloads.ban(ONE, {"m": "ModuleNotFoundError: No module named 'm'", "not_asked_for": "because"})
    assert "No module named 'm'" in caplog.text
    assert told(caplog) == ["before m"]
    preloads.want(ONE, "after", ["m", "fine"])
    assert told(caplog) == ["after m"]
    preloads.want(ONE, "before", ["m"])
    preloads.ban(ONE, {"m": "again"})
    assert told(caplog) == []


def test_a_ban_holds_for_its_environment_only(caplog: pytest.LogCaptureFixture) -> None:
    preloads = Preloads()
    preloads.ban(ONE, {"m": "because"})
    preloads.want(OTHER, "model", ["m"])
    assert told(caplog) == []
    assert preloads.banned == {ONE: {"m": "because"}}
