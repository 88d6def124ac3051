"""Digests of answers; starts in each way are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

from trims_predictors.evaluation.ways import digest_of
from trims_predictors.tensors import Tensor


def test_a_digest_is_of_names_types_shapes_and_bytes_in_any_order() -> None:
    one, other = Tensor("a", "UINT8", (2,), b"xy"), Tensor("b", "UINT8", (1,), b"z")
    assert digest_of([one, other]) == digest_of([other, one])
    changed = [
        Tensor("c", "UINT8", (2,), b"xy"), Tensor("a", "INT8", (2,), b"xy"), Tensor("a", "UINT8", (1, 2), b"xy"),
        Tensor("a", "UINT8", (2,), b"xz"),
    ]  # fmt: skip
    assert len({digest_of([one]), *(digest_of([each]) for each in changed)}) == 5
