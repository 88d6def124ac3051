"""Jobs of the process for large JSON, done here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from trims_predictors.endpoint.json import child
from trims_predictors.endpoint.json.child import count, read, write
from trims_predictors.endpoint.json.requests import to_json
from trims_predictors.tensors import Tensor, from_array

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Sequence


def given(tensors: Sequence[Tensor]) -> tuple[dict[str, Any], memoryview]:
    head = {"tensors": [[each.name, each.dtype, list(each.shape), each.nbytes] for each in tensors]}
    return head, memoryview(b"".join(each.data for each in tensors))


def test_a_request_is_read_into_its_json_and_its_bytes() -> None:
    inputs = [{"name": "x", "datatype": "INT16", "shape": [2], "data": [1, 2]}]
    head, parts = read({}, memoryview(json.dumps({"id": "7", "inputs": inputs}).encode()))
    assert json.loads(head["text"])["id"] == "7"
    assert (head["sizes"], b"".join(parts)) == ([4], b"\1\0\2\0")


@pytest.mark.parametrize("elements", [0, 1, 3, 4, 9])
def test_values_are_written_in_pieces_as_they_are_at_once(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_PIECE", 4)
    numbers = np.arange(elements)
    tensors = [
        from_array("a", numbers),
        from_array("b", numbers.astype(ml_dtypes.bfloat16)),
        from_array("c", np.array([f"é{each}" for each in numbers], dtype=object)),
    ]
    head, parts = write(*given(tensors))
    texts = list(parts)
    assert head["sizes"] == list(map(len, texts))
    assert list(map(json.loads, texts)) == list(map(to_json, tensors))


def test_an_answer_without_bounds_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MOST_TEXT_BYTES", 10)
    with pytest.raises(MemoryError):
        write(*given([from_array("a", np.arange(20))]))


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(CallerError, match="'a' holds NaN"):
        write(*given([from_array("a", np.array([np.nan]))]))


def test_elements_are_counted() -> None:
    texts = from_array("a", np.array(["x", "y"], dtype=object))
    assert list(count(*given([texts]))[1]) == []
    with pytest.raises(CallerError, match="2 elements; its shape says 3"):
        count(*given([Tensor("a", "BYTES", (3,), texts.data)]))
