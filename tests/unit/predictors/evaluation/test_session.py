"""Inputs that an evaluation makes; whole evaluations are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import pytest
from trims_predictors.evaluation.session import made_inputs
from trims_predictors.tensors import to_array

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
