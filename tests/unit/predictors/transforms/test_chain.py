from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import SUPPORT
from trims_predictors.transforms.base import apart
from trims_predictors.transforms.chain import StepContext, call, function_of

from trims.core.errors import CallerError, NotSupportedError, PredictorError
from trims.manifests.steps import Step

if TYPE_CHECKING:
    from pathlib import Path


# Steps that are functions of the manifest's author.

CONTEXT = StepContext("m", options={"number": 3})


def named(text: str) -> Any:
    return function_of(Step("call", {"call": text, "options": {}}), "preprocess[0] call of m", SUPPORT)


def inline(source: str, label: str = "preprocess[0] source of m", function: str = "step") -> Any:
    return function_of(Step("source", {"source": source, "function": function, "options": {}}), label, "")


def test_a_function_beside_the_manifest_gets_context_and_data() -> None:
    data = {"x": np.array([1.0])}
    found = call(named("own_functions:add"), "label", CONTEXT, data)
    assert found["x"].tolist() == [4.0]
    assert data["x"].tolist() == [1.0]


def test_a_function_found_only_in_the_manifest_s_folder_is_imported(tmp_path: Path) -> None:
    (tmp_path / "steps_beside_the_manifest.py").write_text("def twice(context, data): return {**data, **data}\n")
    step = Step("call", {"call": "steps_beside_the_manifest:twice", "options": {}})
    try:
        assert function_of(step, "label", str(tmp_path)).__name__ == "twice"
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["steps_beside_the_manifest"]


def test_each_source_has_a_namespace_of_its_own() -> None:
    source = "calls = []\ndef step(context, data):\n    calls.append(1)\n    return {'calls': len(calls)}\n"
    first, second = inline(source), inline(source, "postprocess[0] source of m")
    for expected in (1, 2):
        assert call(first, "label", CONTEXT, {})["calls"] == expected
    assert call(second, "label", CONTEXT, {})["calls"] == 1
    assert first.__globals__ is not second.__globals__
    assert "calls" not in globals()


def test_a_source_may_have_dataclasses_and_a_function_of_another_name() -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Pair:\n    a: int = 7\n"
        "def mine(context, data):\n    return {'a': Pair().a}\n"
    )
    assert call(inline(source, function="mine"), "label", CONTEXT, {})["a"] == 7


def test_tracebacks_show_the_source_s_lines() -> None:
    function = inline("def step(context, data):\n    return data['absent']  # here\n")
    with pytest.raises(PredictorError, match="KeyError: 'absent'") as failed:
        call(function, "preprocess[0] source of m", CONTEXT, {})
    assert failed.value.__cause__ is not None
    assert "data['absent']  # here" in "".join(traceback.format_exception(failed.value.__cause__))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def step(:\n", r"the source of preprocess\[0\] source of m cannot be run: SyntaxError: .*line 1"),
        ("raise ValueError('no')\n", "cannot be run: ValueError: no"),
        ("raise SystemExit(1)\n", "cannot be run: SystemExit: 1"),
    ],
)
def test_a_source_that_fails_is_told(source: str, message: str) -> None:
    with pytest.raises(PredictorError, match=message):
        inline(source)


def test_what_is_no_function_is_told() -> None:
    for make in (lambda: inline("step = 1\n"), lambda: inline("x = 1\n"), lambda: named("own_functions:NUMBER")):
        with pytest.raises(NotSupportedError, match=r"is no function; it must be one of \(context, data\)"):
            make()


def test_a_function_that_is_not_there_is_told() -> None:
    for text in ("own_functions:absent", "absent_module:function"):
        with pytest.raises(NotSupportedError, match=rf"preprocess\[0\] call of m {text} cannot be imported"):
            named(text)


def test_a_function_may_refuse_a_request_and_its_defects_are_told() -> None:
    with pytest.raises(CallerError, match="m takes none of these"):
        call(named("own_functions:refuse"), "label", CONTEXT, {})
    with pytest.raises(PredictorError, match="label failed: ZeroDivisionError: by hand"):
        call(named("own_functions:fail"), "label", CONTEXT, {})


@pytest.mark.parametrize("value", ["None", "[1]", "{1: 2}"])
def test_a_function_must_return_tensors_by_name(value: str) -> None:
    with pytest.raises(PredictorError, match=r"label returned .*; it must return a dict of name -> "):
        call(inline(f"def step(context, data): return {value}\n"), "label", CONTEXT, {})


def test_lists_and_numbers_become_arrays() -> None:
    found = call(inline("def step(context, data): return {'a': [1, 2], 'b': 3.0, 'c': ['x']}\n"), "label", CONTEXT, {})
    assert {name: each.tolist() for name, each in found.items()} == {"a": [1, 2], "b": 3.0, "c": ["x"]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{'y': np.zeros(2, 'c16')}", "'y' has numpy's type complex128"),
        ("{'y': np.zeros(2, 'M8[s]')}", "'y' has numpy's type datetime64"),
        ("{'y': np.array([object()], object)}", "'y' has an element of the type object"),
        ("{'y': np.ma.masked_array([1.0], [True])}", r"'y' is a masked array, .*`\.filled\(\)`"),
        ("{'': np.zeros(1)}", "the name ''"),
        ("{'\\ud800': np.zeros(1)}", r"the name '\\ud800'"),
        ("{'y': [[1], [1, 2]]}", "ValueError"),
    ],
)
def test_what_no_tensor_can_be_is_the_function_s_fault(value: str, message: str) -> None:
    function = inline(f"import numpy as np\ndef step(context, data): return {value}\n")
    with pytest.raises(PredictorError, match=rf"label returned what is no tensor: .*{message}"):
        call(function, "label", CONTEXT, {})


def test_images_that_lie_apart_may_be_returned() -> None:
    source = "def step(context, data): return data\n"
    data = {"x": apart([np.zeros((1, 2, 3)), np.zeros((2, 2, 3))])}
    assert [each.shape for each in call(inline(source), "label", CONTEXT, data)["x"]] == [(1, 2, 3), (2, 2, 3)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})", "Mute, whose message cannot be made"),
    ],
)
def test_a_function_that_exits_or_has_no_words_is_named(body: str, message: str) -> None:
    with pytest.raises(PredictorError, match=f"label failed: {message}"):
        call(inline(f"def step(context, data):\n    {body}\n"), "label", CONTEXT, {})
