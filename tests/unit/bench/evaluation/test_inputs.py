"""Inputs that an evaluation makes, and their batches."""

from __future__ import annotations

import numpy as np
import pytest
from trims_bench.evaluation.inputs import in_batches, made_inputs
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import CallerError
from trims.manifests.serving import ANY_RANK, TensorType


def test_inputs_are_the_same_each_time_and_of_the_stated_types() -> None:
    types = [TensorType("x", "FP32", (-1, 3)), TensorType("ids", "INT64", (2, -1)), TensorType("t", "BYTES", (1,))]
    one, other = made_inputs(types, "m"), made_inputs(types, "m")
    assert [(each.name, each.dtype, each.shape) for each in one] == [
        ("x", "FP32", (1, 3)), ("ids", "INT64", (2, 1)), ("t", "BYTES", (1,)),
    ]  # fmt: skip
    assert [bytes(each.data) for each in one] == [bytes(each.data) for each in other]
    assert to_array(one[0]).any()
    assert not to_array(one[1]).any()


@pytest.mark.parametrize("types", [[], [TensorType("x", "FP32", (ANY_RANK,))]])
def test_inputs_that_are_not_known_must_be_given(types: list[TensorType]) -> None:
    with pytest.raises(CallerError):
        made_inputs(types, "m")


def test_a_batch_repeats_rows_of_each_input() -> None:
    types = [TensorType("x", "FP32", (-1, 2)), TensorType("t", "BYTES", (-1,))]
    given = [from_array("x", np.array([[1, 2]], np.float32)), from_array("t", np.array([b"a"], object))]
    found = in_batches(given, types, (4, 1), "m", given=True)
    assert list(found) == [1, 4]
    assert [each.shape for each in found[4]] == [(4, 2), (4,)]
    assert to_array(found[4][0]).tolist() == [[1.0, 2.0]] * 4
    assert to_array(found[4][1]).tolist() == [b"a"] * 4


@pytest.mark.parametrize(("shape", "value"), [((3,), np.zeros(3)), ((), np.array(1.0))])
def test_inputs_without_a_variable_first_dimension_have_no_batches(
    shape: tuple[int, ...], value: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    one = [from_array("x", value)]
    with pytest.raises(CallerError):
        in_batches(one, [TensorType("x", "FP64", shape)], (2,), "m", given=True)
    assert in_batches(one, [TensorType("x", "FP64", shape)], (1,), "m", given=True) == {1: one}
