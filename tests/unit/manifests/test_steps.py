"""Steps follow one another: each reads what is there."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import ManifestError
from trims.manifests.manifest import parse_manifest


def manifest(*steps: Any, **fields: Any) -> dict[str, Any]:
    return {"name": "m", "artifact": {"path": "m.safetensors"}, "preprocess": list(steps), **fields}


X = {"name": "x", "dtype": "FP32", "shape": [-1]}
IMAGE = {"name": "image", "dtype": "BYTES", "shape": [-1]}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"softmax": {"input": "y"}}], r"preprocess\[0\] softmax: reads the tensor 'y'.*there are x, image"),
        ([{"softmax": {"input": "x", "output": "y"}}, {"softmax": {"input": "x"}}], r"\[1\] softmax: reads .* 'x'"),
        ([{"softmax": {"input": "image"}}], "takes numbers, but the input 'image' is stated as BYTES"),
        ([{"decode_image": {"input": "x"}}], "takes BYTES, but the input 'x' is stated as FP32"),
    ],
)
def test_a_step_that_cannot_run_is_refused_at_registration(steps: list[Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse_manifest(manifest(*steps, inputs=[X, IMAGE]))


@pytest.mark.parametrize(
    "steps",
    [
        [{"softmax": {"input": "x", "output": "y", "keep": True}}, {"softmax": {"input": "x"}}],
        [{"decode_image": {"input": "image", "output": "data"}}, {"resize": {"input": "data", "size": 2}}],
        [{"call": "m:f"}, {"softmax": {"input": "made_by_the_function"}}],
    ],
)
def test_a_step_may_read_what_an_earlier_one_gives(steps: list[Any]) -> None:
    assert parse_manifest(manifest(*steps, inputs=[X, IMAGE])).preprocess
    assert parse_manifest(manifest({"softmax": {"input": "unknown"}})).preprocess, "without `inputs` anything may come"
