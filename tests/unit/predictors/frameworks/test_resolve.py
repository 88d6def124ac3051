"""Predictors found by the names in a manifest."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import SUPPORT
from own_handlers import NUMBER, answer_bytes, handler, later
from own_predictors import Echo
from trims_predictors.api import Context, Predictor
from trims_predictors.frameworks import CLASS, FUNCTION, HANDLER, PLUGIN
from trims_predictors.frameworks.function import FunctionPredictor
from trims_predictors.frameworks.resolve import (
    GROUP,
    HandlerPredictor,
    from_file,
    imported,
    make,
    plugin,
)

from trims.core.errors import CallerError, ConfigError, NotSupportedError, PredictorError

if TYPE_CHECKING:
    from pathlib import Path


# A handler as a predictor.

WEIGHTS: Any = {"factor": np.array(2.0)}


def event(value: object) -> dict[str, Any]:
    return {"event": np.array([json.dumps(value).encode()], dtype=object)}


def loaded(function: Any, form: str = "weights") -> HandlerPredictor:
    predictor = HandlerPredictor(function, "f.py:name")
    predictor.load(WEIGHTS, Context("m", options={"as": form}))
    return predictor


def test_the_handler_gets_model_and_event_and_its_answer_is_json() -> None:
    predictor = loaded(handler)
    assert isinstance(predictor, Predictor)
    assert json.loads(predictor.predict(event({"x": 3}))["answer"][0])["y"] == 6.0
    predictor.unload()
    assert not hasattr(predictor, "_model")


def test_an_answer_that_json_cannot_hold_is_the_handler_s_fault() -> None:
    with pytest.raises(PredictorError, match="Object of type bytes is not JSON serializable"):
        loaded(answer_bytes).predict(event(None))


@pytest.mark.parametrize(("function", "message"), [(NUMBER, "f.py:name is no function"), (later, "is `async def`")])
def test_what_is_no_handler_is_told(function: Any, message: str) -> None:
    with pytest.raises(NotSupportedError, match=message):
        HandlerPredictor(function, "f.py:name")


def test_a_form_that_there_is_not_is_told() -> None:
    with pytest.raises(CallerError, match="as_ is 'tensorflow'"):
        loaded(handler, "tensorflow")


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [("json", b"[1]", [1]), ("json", b"", None), ("text", b"a", "a"), ("bytes", b"a", b"a")],
)
def test_a_cloud_event_is_its_attributes_with_its_data(kind: str, data: bytes, expected: object) -> None:
    seen: list[Any] = []
    parts = np.array([b'{"id": "1"}', kind.encode(), data], dtype=object)
    loaded(lambda model, event: seen.append(event)).predict({"event": parts})
    assert seen == [{"id": "1", "data": expected}]


@pytest.mark.parametrize(
    "parts",
    [[b"{"], [b"1", b"2"], [b"{}", b"json", b"{"], [b"{}", b"text", b"\xff"], [b"1", b"text", b""], [b"{}", b"x", b""]],
)
def test_an_event_that_is_none_is_the_caller_s_fault(parts: list[bytes]) -> None:
    with pytest.raises(CallerError):
        loaded(handler).predict({"event": np.array(parts, dtype=object)})


def test_a_request_without_an_event_is_the_caller_s_fault() -> None:
    with pytest.raises(CallerError, match="event"):
        loaded(handler).predict({"input": np.array([b"x"], dtype=object)})


def test_input_and_output_are_stated() -> None:
    predictor = loaded(handler)
    assert [each.name for each in (*predictor.inputs(), *predictor.outputs())] == ["event", "answer"]


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
