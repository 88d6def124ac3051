"""Predictors found by the names in a manifest."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fleets import SUPPORT
from own_predictors import Echo
from trims_predictors.frameworks import CLASS, FUNCTION, HANDLER, PLUGIN
from trims_predictors.frameworks.function import FunctionPredictor
from trims_predictors.frameworks.handler import HandlerPredictor
from trims_predictors.frameworks.resolve import (
    GROUP,
    from_file,
    imported,
    make,
    plugin,
)

from trims.core.errors import ConfigError, NotSupportedError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[importlib.metadata.EntryPoint]:
    """Entry points that are installed, as the test says."""
    found: list[importlib.metadata.EntryPoint] = []

    def entry_points(*, group: str) -> Any:
        return importlib.metadata.EntryPoints(each for each in found if each.group == group)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return found


def entry(name: str, value: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, GROUP)


def test_a_class_and_a_function_are_made_into_predictors() -> None:
    assert isinstance(make("own_predictors:Echo", CLASS, SUPPORT), Echo)
    assert isinstance(make("own_functions:scale", FUNCTION, SUPPORT), FunctionPredictor)


@pytest.mark.parametrize(
    ("call", "how", "message"),
    [
        ("own_predictors:NotAPredictor", CLASS, "is no predictor: it needs the methods load, predict and unload"),
        ("own_predictors:Missing", CLASS, "the predictor own_predictors:Missing cannot be imported"),
        ("own_predictors:Missing", CLASS, r"own_predictors.py\) has no 'Missing'; correct the name in the manifest"),
        ("missing_module:f", FUNCTION, "the predictor missing_module:f cannot be imported"),
        ("missing_module:f", FUNCTION, "No module named 'missing_module'; install its package"),
        ("own_functions:NUMBER", FUNCTION, r"is no function; it must be one of \(weights, inputs\)"),
    ],
)
def test_what_is_no_predictor_is_told(call: str, how: str, message: str) -> None:
    with pytest.raises(NotSupportedError, match=message):
        make(call, how, SUPPORT)


def test_what_is_imported_is_named_with_what_needs_it() -> None:
    with pytest.raises(NotSupportedError, match="the step missing_module:f cannot be imported"):
        imported("missing_module:f", "", "the step")


def test_an_installed_predictor_is_found_by_its_name(entries: list[importlib.metadata.EntryPoint]) -> None:
    entries.extend([entry("my-predictor", "own_predictors:Echo"), entry("other", "own_predictors:Picky")])
    assert isinstance(make("my-predictor", PLUGIN, ""), Echo)
    entries.append(entry("my-predictor", "own_predictors:Echo"))  # one package may be found twice
    assert plugin("my-predictor") is Echo


def test_a_name_that_is_not_installed_is_answered_with_those_that_are(
    entries: list[importlib.metadata.EntryPoint],
) -> None:
    with pytest.raises(NotSupportedError, match=r"there is no predictor 'mine' .*; known are none"):
        plugin("mine")
    entries.extend([entry("b", "own_predictors:Echo"), entry("a", "own_predictors:Echo")])
    with pytest.raises(NotSupportedError, match=r"known are a, b \(entry points of trims\.predictors\); install"):
        plugin("mine")


def test_two_packages_with_one_name_are_refused(entries: list[importlib.metadata.EntryPoint]) -> None:
    entries.extend([entry("a", "own_predictors:Picky"), entry("a", "own_predictors:Echo")])
    with pytest.raises(
        ConfigError, match=r"two packages have a predictor 'a': own_predictors:Echo and own_pred.*Picky"
    ):
        plugin("a")


def test_an_installed_predictor_that_cannot_be_used_is_named(entries: list[importlib.metadata.EntryPoint]) -> None:
    entries.extend([entry("a", "missing_module:C"), entry("b", "own_predictors:NotAPredictor")])
    with pytest.raises(NotSupportedError, match=r"plugin 'a' \(missing_module:C\) cannot be loaded: ModuleNotFound"):
        plugin("a")
    with pytest.raises(NotSupportedError, match="b is no predictor"):
        make("b", PLUGIN, "")


def test_a_handler_is_found_in_its_file(folder: Path) -> None:
    (folder / "handlers_here.py").write_text("def mine(model, event): return event")
    call = f"{folder}/handlers_here.py:mine"
    assert isinstance(make(call, HANDLER, ""), HandlerPredictor)
    with pytest.raises(NotSupportedError, match="a module of that name is there already; rename the file"):
        from_file(call)
    del sys.modules["handlers_here"]
    with pytest.raises(NotSupportedError, match=r"handlers_here\.py has no function 'other'; it has mine"):
        from_file(f"{folder}/handlers_here.py:other")
    del sys.modules["handlers_here"]
    sys.path.remove(str(folder))
