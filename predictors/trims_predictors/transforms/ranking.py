"""Steps that rank: the best k with their labels, and the order of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import NotSupportedError
from trims_predictors.transforms.arrays import checked
from trims_predictors.transforms.base import RefusedError, numbers, on_one
from trims_predictors.transforms.files import locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims_predictors.transforms.base import Array, Operation


def top_k(fields: Mapping[str, Any], folder: str) -> Operation:
    """The k largest numbers along the last axis, from the largest down: scores, INT64 indices, labels if there are."""
    k = fields["k"]
    labels = None if fields["labels"] is None else read_labels(locate(fields["labels"], folder))

    def work(array: Array) -> tuple[Array, ...]:
        array = numbers(array)
        count = array.shape[checked(-1, array)]
        if count < k:
            raise RefusedError(f"its last dimension has {count} numbers, of which `k` wants {k}")
        if labels is not None and len(labels) != count:
            raise RefusedError(f"its last dimension has {count} numbers, and the file of labels {len(labels)} lines")
        indices = order(array, axis=-1, descending=True)[..., :k]
        scores = np.take_along_axis(array, indices, axis=-1)
        return (scores, indices) if labels is None else (scores, indices, labels[indices])

    return work


def argsort(fields: Mapping[str, Any], folder: str) -> Operation:
    """INT64 indices that put the numbers along an axis in order; equal ones stay in their order."""
    del folder

    def work(array: Array) -> Array:
        array = numbers(array)
        return order(array, axis=checked(fields["axis"], array), descending=fields["descending"])

    return on_one(work)


def order(array: Array, *, axis: int, descending: bool) -> Array:
    """Indices of the numbers in order; of equal ones the first comes first, and what is no number comes last."""
    if not descending:
        return np.argsort(array, axis=axis, kind="stable").astype(np.int64)
    if array.dtype.kind not in "biu":
        return np.argsort(-array, axis=axis, kind="stable").astype(np.int64)
    # Negated integers may overflow: the order of the reversed numbers is reversed instead.
    reversed_order = np.flip(np.argsort(np.flip(array, axis), axis=axis, kind="stable"), axis)
    made: Array = (array.shape[axis] - 1 - reversed_order).astype(np.int64)
    return made


def read_labels(path: str) -> Array:
    """The lines of a UTF-8 file as `bytes` objects. Raises NotSupportedError if it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors of Windows put a mark before the first line
            lines = [line.rstrip("\r\n").encode() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise NotSupportedError(
            f"the labels {path} cannot be read: {error}; write them in UTF-8, one a line"
        ) from error
    made = np.empty(len(lines), dtype=object)
    made[:] = lines
    return made
