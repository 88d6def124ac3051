"""Weights of a folder, read as their own format."""

from __future__ import annotations

from pathlib import Path

import pytest

from trims.formats.transformers.weights import format_of, weight_options


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("model.safetensors", "safetensors"),
        ("model.safetensors.index.json", "safetensors"),
        ("model.safetensors.index.fp16.json", "safetensors"),
        ("pytorch_model.bin", "torch"),
        ("pytorch_model.bin.index.json", "torch"),
    ],
)
def test_the_name_of_the_weights_says_their_format(name: str, chosen: str) -> None:
    assert format_of(Path("/m", name)).format == chosen


def test_options_of_the_folder_are_not_those_of_its_weights() -> None:
    assert weight_options({"task": "fill-mask", "allow_pickle": True}) == {"allow_pickle": True}
