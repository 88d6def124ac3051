"""Numbers in JSON become what they say, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trims_predictors.endpoint.json.numbers import flat, numbers
from trims_predictors.endpoint.json.requests import parse_request, shrink
from trims_predictors.tensors import to_array

from trims.core.errors import CallerError


@pytest.mark.parametrize("dtype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1" + "0" * 400, "[Infinity, 1e309]", "[36893488147419103232, 1e400]"]
)
def test_a_number_beyond_what_python_reads_is_refused_and_not_made_infinite(dtype: str, number: str) -> None:
    shape = [2] if number.startswith("[") else [1]
    text = f'{{"inputs": [{{"name": "x", "datatype": "{dtype}", "shape": {shape}, "data": [{number}]}}]}}'
    for read in (lambda data: parse_request(memoryview(data), None), shrink):
        with pytest.raises(CallerError, match=f"the input 'x' has values that {dtype} cannot hold"):
            read(text.encode())


@pytest.mark.parametrize("dtype", ["FP16", "BF16", "FP32", "FP64"])
def test_infinity_and_nan_are_taken_as_they_are_written(dtype: str) -> None:
    inputs = f'{{"name": "x", "datatype": "{dtype}", "shape": [4], "data": [Infinity, -Infinity, NaN, 1.5]}}'
    (tensor,) = parse_request(memoryview(f'{{"inputs": [{inputs}]}}'.encode()), None).inputs
    assert np.array_equal(to_array(tensor).astype("f8"), [np.inf, -np.inf, np.nan, 1.5], equal_nan=True)


def test_whole_numbers_beyond_64_bits_are_taken_by_floating_point() -> None:
    found = numbers("x", "FP64", [2**64, 2**200, -(2**70), 0.5])
    assert found.tolist() == [2.0**64, 2.0**200, -(2.0**70), 0.5]


@pytest.mark.parametrize(
    ("dtype", "data", "kept"),
    [
        ("UINT64", [1, 2**63], [1, 2**63]),
        ("UINT64", [[0], [2**64 - 1]], [0, 2**64 - 1]),
        ("INT64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("INT8", [], []),
        ("BOOL", [True, False], [True, False]),
    ],
)
def test_whole_numbers_that_the_type_can_hold_are_kept(dtype: str, data: list[Any], kept: list[Any]) -> None:
    assert numbers("x", dtype, data).ravel().tolist() == kept


def test_lists_are_flattened_in_order_however_deep_they_are() -> None:
    assert flat([[1, [2]], [], [[[3]]], 4]) == [1, 2, 3, 4]
