"""Lists of steps: their order, what each one sees, and which error a wrong tensor is."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import SUPPORT
from making_steps import apply, chain, elements, encoded, picture, write_tokenizer
from trims_predictors.transforms.base import apart
from trims_predictors.transforms.chain import BUILDERS, StepContext, call, function_of, steps_of

from trims.core.errors import CallerError, NotSupportedError, PredictorError
from trims.manifests.step_fields import KINDS
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


SOFTMAX = {"softmax": {"input": "x"}}
SCALED = {"normalize": {"input": "x", "scale": 2}}
SHIFTED = {"normalize": {"input": "x", "mean": -1}}


def test_every_step_that_a_manifest_may_name_can_be_made() -> None:
    assert BUILDERS.keys() == KINDS.keys()


def test_a_message_has_the_steps() -> None:
    step = Step("softmax", {"input": "x"})
    assert steps_of([{"kind": "softmax", "fields": {"input": "x"}}]) == (step,)


def test_steps_run_in_their_order() -> None:
    data = {"x": np.array([1.0, 2.0])}
    assert chain(SCALED, SHIFTED).run(data)["x"].tolist() == [3.0, 5.0]
    assert chain(SHIFTED, SCALED).run(data)["x"].tolist() == [4.0, 6.0]
    assert data["x"].tolist() == [1.0, 2.0]


def test_no_steps_are_false() -> None:
    assert not chain()
    assert chain(SOFTMAX)


def test_a_step_takes_its_input_out_unless_it_keeps_it() -> None:
    data = {"x": np.array([1.0, 2.0]), "other": np.array(1)}
    renamed = {"softmax": {"input": "x", "output": "p"}}
    assert chain(renamed).run(data).keys() == {"other", "p"}
    assert chain({"softmax": {**renamed["softmax"], "keep": True}}).run(data).keys() == {"other", "p", "x"}
    assert chain({"top_k": {"input": "x", "k": 1}}).run(data).keys() == {"other", "scores", "indices"}


def test_a_tensor_that_is_not_there_is_the_caller_s_fault_or_the_predictor_s() -> None:
    with pytest.raises(CallerError, match=r"preprocess\[0\] softmax needs the tensor 'x', .*there are y"):
        chain(SOFTMAX).run({"y": np.zeros(1)})
    with pytest.raises(PredictorError, match=r"postprocess\[0\] softmax needs the tensor 'x', .*there are none"):
        chain(SOFTMAX, which="postprocess").run({})


def test_a_wrong_tensor_is_named_with_its_step() -> None:
    with pytest.raises(CallerError, match=r"preprocess\[1\] softmax cannot take the tensor 'x': its shape is \[\]"):
        chain(SCALED, SOFTMAX).run({"x": np.array(1.0)})
    with pytest.raises(PredictorError, match=r"postprocess\[0\] softmax cannot take the tensor 'x'"):
        chain(SOFTMAX, which="postprocess").run({"x": elements(b"text")})


@pytest.mark.parametrize("dtype", ["c16", "M8[s]", [("a", "f4")]])
def test_numbers_that_no_tensor_has_are_the_predictor_s_fault(dtype: Any) -> None:
    for step in (SOFTMAX, SCALED, {"cast": {"input": "x", "dtype": "FP32"}}):
        with pytest.raises(
            PredictorError, match=r"postprocess\[0\] \w+ cannot take the tensor 'x': it has numpy's type"
        ):
            chain(step, which="postprocess").run({"x": np.zeros(2, dtype)})


def test_a_step_that_fails_in_any_other_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILDERS, "softmax", lambda fields, folder: lambda array: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(PredictorError, match=r"preprocess\[0\] softmax failed: ZeroDivisionError"):
        chain(SOFTMAX).run({"x": np.zeros(1)})


def test_steps_after_the_predictor_see_what_it_was_given() -> None:
    pool = {"mean_pool": {"input": "hidden"}}
    hidden, mask = np.array([[[2.0], [4.0]]]), np.array([[1, 0]])
    after = chain(pool, which="postprocess")
    assert after.run({"hidden": hidden}, {"attention_mask": mask})["hidden"].tolist() == [[2.0]]
    both = {"hidden": hidden, "attention_mask": np.array([[0, 1]])}
    assert after.run(both, {"attention_mask": mask})["hidden"].tolist() == [[4.0]], "its own outputs come first"
    assert after.run({"hidden": hidden}, {"attention_mask": mask}).keys() == {"hidden"}


def test_functions_get_options_attributes_and_what_was_given() -> None:
    source = (
        "def step(context, data):\n"
        "    return {'told': [context.model, context.options['a'], context.attributes['b'], sorted(context.given)]}\n"
    )
    steps = chain({"source": source.replace("sorted(context.given)", "*context.given"), "options": {"a": "A"}}, b="B")
    assert steps.run({}, {"g": np.zeros(1)})["told"].tolist() == ["m", "A", "B", "g"]
    add = {"call": "own_functions:add", "options": {"number": 5}}
    assert chain(add, SCALED, folder=SUPPORT).run({"x": np.array([1.0])})["x"].tolist() == [12.0]


def test_a_file_that_is_not_there_is_told_before_the_first_request(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    step = {"tokenize": {"input": "text", "tokenizer": "absent.json"}}
    with pytest.raises(NotSupportedError, match=r"absent\.json"):
        chain(step, folder=str(tmp_path))
    write_tokenizer(tmp_path)
    step["tokenize"]["tokenizer"] = "tokenizer.json"
    assert chain(step, folder=str(tmp_path)).run({"text": elements(b"cat")}).keys() == {"input_ids", "attention_mask"}


IMAGE_STEPS: list[Any] = [
    {"decode_image": {"input": "image"}},
    {"resize": {"input": "image", "shorter_side": 8}},
    {"center_crop": {"input": "image", "size": 8}},
    {"normalize": {"input": "image", "scale": "1/255", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}},
    {"layout": {"input": "image", "to": "NCHW", "output": "data"}},
]


def test_images_of_different_sizes_become_one_tensor() -> None:
    pytest.importorskip("PIL")
    images = [picture(20, 30), picture(16, 9)]
    found = chain(*IMAGE_STEPS).run({"image": elements(*map(encoded, images))})
    assert found.keys() == {"data"}
    assert (found["data"].shape, found["data"].dtype) == ((2, 3, 8, 8), np.float32)
    for image, made in zip(images, found["data"], strict=True):
        cut = apply("center_crop", apply("resize", image, shorter_side=8), size=8)
        expected = ((cut / 255 - [0.5, 0.4, 0.3]) / 0.2).transpose(2, 0, 1)
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_images_that_end_apart_are_put_together_or_refused() -> None:
    pytest.importorskip("PIL")
    same = chain(IMAGE_STEPS[0]).run({"image": elements(encoded(picture(4, 5)), encoded(picture(4, 5)))})
    assert same["image"].shape == (2, 4, 5, 3)
    with pytest.raises(CallerError, match=r"preprocess ends with the tensor 'image', but .* needs `resize`"):
        chain(IMAGE_STEPS[0]).run({"image": elements(encoded(picture(4, 5)), encoded(picture(5, 5)))})


def test_rows_lie_in_order_after_the_last_step() -> None:
    source = "def step(context, data): return {'x': data['x'][::-1], 'scalar': 1.0}\n"
    found = chain({"source": source}).run({"x": np.arange(3)})
    assert (found["x"].tolist(), found["x"].flags.c_contiguous) == ([2, 1, 0], True)
    assert found["scalar"].shape == ()
