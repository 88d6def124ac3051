"""Outputs as a request wants them: their largest values as texts, and written to shared memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from trims_predictors.endpoint.requests.outputs import classify
from trims_predictors.tensors import Tensor, from_array, to_array

from trims.core.errors import CallerError


def texts(array: Any, classes: int, *, batches: bool = False) -> Any:
    made = classify(from_array("y", array), classes, batches=batches)
    assert made.dtype == "BYTES"
    made.check()
    return [[each.decode() for each in row] if batches else row.decode() for row in to_array(made).tolist()]


def test_the_largest_values_come_first_with_their_indices() -> None:
    assert texts(np.array([0.25, 3.5, -1.0, 3.5], "f4"), 3) == ["3.500000:1", "3.500000:3", "0.250000:0"]
    assert texts(np.array([[1, 9], [5, -7]], "i8"), 2) == ["9:1", "5:2"], "all dimensions together without a batch"


def test_a_text_has_the_label_of_its_index_where_there_is_one() -> None:
    made = classify(from_array("y", np.array([1.0, 3.0, 2.0])), 3, batches=False, labels=[b"cat", b"d:g"])
    assert to_array(made).tolist() == [b"3.000000:1:d:g", b"2.000000:2", b"1.000000:0:cat"]


def test_each_row_of_a_batch_has_its_own() -> None:
    rows = np.array([[[1.0, 2.0], [4.0, 3.0]], [[8.0, 7.0], [6.0, 5.0]]])
    assert texts(rows, 2, batches=True) == [["4.000000:2", "3.000000:3"], ["8.000000:0", "7.000000:1"]]


def test_more_classes_than_there_are_elements_are_as_many_as_there_are() -> None:
    assert texts(np.array([1.0, 2.0]), 5) == ["2.000000:1", "1.000000:0"]
    assert texts(np.zeros((0, 3)), 2, batches=True) == []
    assert texts(np.zeros((2, 0)), 2, batches=True) == [[], []]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"])
def test_integers_are_ordered_over_their_whole_range_and_not_rounded(dtype: str) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    assert texts(np.array([least, most - 1, most], dtype), 3) == [f"{most}:2", f"{most - 1}:1", f"{least}:0"]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16])
def test_what_is_not_a_number_comes_last(dtype: Any) -> None:
    array = np.array([np.nan, -np.inf, 1.0, np.inf]).astype(dtype)
    assert texts(array, 4) == ["inf:3", "1.000000:2", "-inf:1", "nan:0"]


@pytest.mark.parametrize("array", [np.array([True]), np.array([b"t"], object)])
def test_text_and_truth_have_no_classes(array: Any) -> None:
    with pytest.raises(CallerError, match="a classification is of numbers"):
        texts(array, 1)


def test_more_texts_than_an_answer_may_have_are_refused_before_they_are_made() -> None:
    wide = Tensor("y", "UINT8", (20, 60_000), bytes(1_200_000))
    with pytest.raises(CallerError, match="has 1200000 texts; 1000000 are the most"):
        classify(wide, 60_000, batches=True)
