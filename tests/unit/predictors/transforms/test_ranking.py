"""Steps that rank, against Python's `sorted`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from making_steps import apply, elements, operation
from trims_predictors.transforms.base import RefusedError

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ["u1", "i1", "u8", "i8", "f2", "f4", "f8"]


def by_sorted(values: list[float], *, descending: bool) -> list[int]:
    """Indices in order; of equal values the first comes first, also from the largest down."""
    return sorted(range(len(values)), key=lambda index: (-values[index] if descending else values[index], index))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_argsort_puts_numbers_in_order_and_leaves_equal_ones(dtype: str, descending: bool) -> None:
    values = np.random.default_rng(3).integers(0, 6, (4, 12)).astype(dtype)
    found = apply("argsort", values, descending=descending)
    assert found.dtype == np.int64
    assert found.tolist() == [by_sorted(row, descending=descending) for row in values.tolist()]
    assert np.array_equal(apply("argsort", values.T, axis=0, descending=descending), found.T)


@pytest.mark.parametrize(("dtype", "order"), [("i1", [1, 2, 0]), ("u1", [1, 2, 0])])
def test_the_largest_and_least_integers_are_ordered(dtype: str, order: list[int]) -> None:
    limits = np.iinfo(dtype)
    assert apply("argsort", np.array([limits.min, limits.max, 3], dtype), descending=True).tolist() == order


@pytest.mark.parametrize("descending", [False, True])
def test_what_is_no_number_comes_last(descending: bool) -> None:
    values = np.array([np.nan, 1.0, 2.0], "f4")
    assert apply("argsort", values, descending=descending).tolist()[-1] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_k_come_with_scores_and_indices(dtype: str) -> None:
    values = np.random.default_rng(4).integers(0, 50, (3, 9)).astype(dtype)
    scores, indices = operation("top_k", k=4)(values)
    expected = [by_sorted(row, descending=True)[:4] for row in values.tolist()]
    assert (indices.dtype, indices.tolist()) == (np.int64, expected)
    assert scores.dtype == values.dtype
    assert scores.tolist() == [sorted(row, reverse=True)[:4] for row in values.tolist()]


def test_labels_are_the_lines_of_a_file_beside_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\r\ntabby, tabby cat\nKätzchen\n", encoding="utf-8", newline="")
    ranked = operation("top_k", str(tmp_path), k=2, labels="labels.txt")
    _, indices, labels = ranked(np.array([[0.1, 0.2, 0.7], [3.0, 2.0, 1.0]]))
    assert indices.tolist() == [[2, 1], [0, 1]]
    assert labels.tolist() == [["Kätzchen".encode(), b"tabby, tabby cat"], [b"cat", b"tabby, tabby cat"]]
    with pytest.raises(RefusedError, match="has 4 numbers, and the file of labels 3 lines"):
        ranked(np.zeros((1, 4)))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3)), "has 3 numbers, of which `k` wants 5"),
        (np.zeros(()), "nothing along"),
        (elements(b"a"), "text"),
    ],
)
def test_what_cannot_be_ranked_is_refused(array: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        operation("top_k")(array)


def test_labels_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "labels.bin").write_bytes(b"\xff\xfe\n")
    with pytest.raises(NotSupportedError, match=r"labels\.bin cannot be read: .*write them in UTF-8, one a line"):
        operation("top_k", str(tmp_path), labels="labels.bin")
