"""Plain values of JSON as tensors, and back."""

from __future__ import annotations

from typing import Any

import pytest
from trims_predictors.endpoint.generate.generation import request_of, wants_parts
from trims_predictors.endpoint.requests.infer_request import InferRequest
from trims_predictors.tensors import Tensor, to_array

from trims.core.errors import CallerError


@pytest.mark.parametrize(
    ("value", "dtype", "values"),
    [
        ("text", "BYTES", [b"text"]),
        ("", "BYTES", [b""]),
        (["a", "é"], "BYTES", [b"a", "é".encode()]),
        (True, "BOOL", [True]),
        (3, "INT64", [3]),
        (-(1 << 63), "INT64", [-(1 << 63)]),
        (0.5, "FP64", [0.5]),
        ([1, 0.5], "FP64", [1.0, 0.5]),
        (1 << 70, "FP64", [float(1 << 70)]),
    ],
)
def test_a_value_becomes_the_tensor_of_its_kind(value: Any, dtype: str, values: list[Any]) -> None:
    (tensor,) = request_of({"x": value}).inputs
    assert (tensor.name, tensor.dtype, tensor.shape) == ("x", dtype, (len(values),))
    assert to_array(tensor).tolist() == values
    tensor.check()


@pytest.mark.parametrize("value", [{}, [], [[1]], ["a", 1], [True, 1], {"a": 1}, [None], "\ud800"])
def test_a_value_that_no_tensor_holds_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CallerError, match="'x'"):
        request_of({"x": value})


def test_null_leaves_a_field_out_and_names_are_bounded() -> None:
    assert request_of({"x": None}).inputs == []
    assert request_of({}, ("y",), "7").wanted is not None
    assert request_of({}, request_id="7").id == "7"
    with pytest.raises(CallerError):
        request_of({str(number): 1 for number in range(5000)})
    with pytest.raises(CallerError):
        request_of({"x" * 5000: 1})


def test_parts_are_wanted_by_an_input_of_that_name() -> None:
    assert wants_parts(request_of({"stream": True}))
    assert not wants_parts(request_of({"stream": False}))
    assert not wants_parts(request_of({"stream": "yes"}))
    assert not wants_parts(request_of({"x": 1}))
    assert not wants_parts(InferRequest([Tensor("stream", "BOOL", (2,), b"\1\1")]))
