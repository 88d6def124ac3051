"""Lists of steps: their order, what each one sees, and which error a wrong tensor is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import SUPPORT
from making_steps import apply, chain, elements, encoded, picture, write_tokenizer
from trims_predictors.transforms.chain import BUILDERS, steps_of

from trims.core.errors import CallerError, NotSupportedError, PredictorError
from trims.manifests.step_fields import KINDS
from trims.manifests.steps import Step

if TYPE_CHECKING:
    from pathlib import Path

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
