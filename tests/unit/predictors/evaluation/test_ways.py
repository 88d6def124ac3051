"""Digests of answers; starts in each way are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import numpy as np
import pytest
from trims_predictors.evaluation.ways import are_close, digest_of
from trims_predictors.tensors import Tensor, from_array


def test_a_digest_is_of_names_types_shapes_and_bytes_in_any_order() -> None:
    one, other = Tensor("a", "UINT8", (2,), b"xy"), Tensor("b", "UINT8", (1,), b"z")
    assert digest_of([one, other]) == digest_of([other, one])
    changed = [
        Tensor("c", "UINT8", (2,), b"xy"), Tensor("a", "INT8", (2,), b"xy"), Tensor("a", "UINT8", (1, 2), b"xy"),
        Tensor("a", "UINT8", (2,), b"xz"),
    ]  # fmt: skip
    assert len({digest_of([one]), *(digest_of([each]) for each in changed)}) == 5


def answer(dtype: str, *values: float) -> list[Tensor]:
    return [from_array("y", np.array(values, dtype))]


@pytest.mark.parametrize(
    ("one", "other", "close"),
    [
        (answer("f4", 1.0, 1e-6), answer("f4", 1.0001, 2e-6), True),
        (answer("f4", 1.0, 0.0), answer("f4", 1.1, 0.0), False),
        (answer("f4", np.nan, 1.0), answer("f4", np.nan, 1.0), True),
        (answer("f4", np.inf, 1.0), answer("f4", 1.0, 1.0), False),
        (answer("i8", 1), answer("i8", 2), False),
        (answer("f4", 1.0), answer("f8", 1.0), False),
        (answer("f4", 1.0), [from_array("z", np.ones(1, "f4"))], False),
        (answer("f4", 1.0), [], False),
        (answer("f4"), answer("f4"), True),
    ],
)
def test_answers_are_close_but_for_rounding(one: list[Tensor], other: list[Tensor], close: bool) -> None:
    assert are_close(one, other) == are_close(other, one) == close
