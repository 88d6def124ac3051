"""Inputs and outputs as a manifest states them."""

from __future__ import annotations

import pytest

from trims.core.errors import ManifestError
from trims.manifests.serving import TensorType
from trims.manifests.tensor_fields import parse_inputs, parse_outputs

X = {"name": "x", "dtype": "FP32", "shape": [-1, 3, 4]}


def test_inputs_have_layouts_and_outputs_labels_as_well() -> None:
    (found,) = parse_inputs([{**X, "layout": "NCHW"}], "m: inputs")
    assert (found, found.layout) == (TensorType("x", "FP32", (-1, 3, 4)), "NCHW")
    (found,) = parse_outputs([{**X, "labels": "l.txt"}], "m: outputs")
    assert found.labels == "l.txt"
    with pytest.raises(ManifestError, match=r"m: inputs\[0\]: unknown field 'labels'"):
        parse_inputs([{**X, "labels": "l.txt"}], "m: inputs")


def test_a_layout_is_of_an_image_and_a_name_stands_for_one_tensor() -> None:
    with pytest.raises(ManifestError, match="3 or 4 lengths, not 1"):
        parse_inputs([{**X, "shape": [1], "layout": "NCHW"}], "m: inputs")
    with pytest.raises(ManifestError, match="'x' is there twice"):
        parse_inputs([X, X], "m: inputs")
