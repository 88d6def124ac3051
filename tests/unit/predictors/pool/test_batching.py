"""Several requests as one, and its answer taken apart."""

from __future__ import annotations

import numpy as np
import pytest
from trims_predictors.pool.batching import join, rows_of, split
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import CallerError, PredictorError


def test_rows_join_and_part_again() -> None:
    requests = [
        [from_array("x", np.full((rows, 2), rows, "f4")), from_array("t", np.array([["ab" * i] for i in range(rows)]))]
        for rows in (1, 3, 2)
    ]
    joined = join(requests)
    assert [tensor.shape for tensor in joined] == [(6, 2), (6, 1)]
    for request, parts in zip(requests, split(joined, [1, 3, 2]), strict=True):
        for given, part in zip(request, parts, strict=True):
            assert part.shape == given.shape
            assert to_array(part).tolist() == to_array(given).tolist()


def test_a_request_alone_is_passed_on_as_it_is() -> None:
    request = [from_array("x", np.zeros((2, 2)))]
    assert join([request]) == request
    assert split(request, [5]) == [request], "also if the model answers with other rows"


def test_what_may_run_together_has_the_same_names_types_and_shapes() -> None:
    def kind(**arrays: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> object:
        return rows_of([from_array(name, array) for name, array in arrays.items()])[1]

    assert kind(x=np.zeros((1, 2))) == kind(x=np.zeros((5, 2)))
    assert kind(x=np.zeros((1, 2))) != kind(x=np.zeros((1, 3)))
    assert kind(x=np.zeros((1, 2))) != kind(y=np.zeros((1, 2)))
    one = [from_array("x", np.zeros((1, 2)))]
    assert rows_of(one, ["y", "z"]) == rows_of(one, ["z", "y"])
    assert len({rows_of(one, wanted)[1] for wanted in ((), ("y",), ("z",), ("y", "z"))}) == 4
    for wrong in ({"x": np.zeros(())}, {"x": np.zeros((0, 2))}, {"x": np.zeros(2), "y": np.zeros(3)}):
        with pytest.raises(CallerError, match="all inputs need the same first dimension"):
            kind(**wrong)


def test_an_answer_with_other_rows_than_the_batch_is_the_predictor_s_fault() -> None:
    for wrong in (np.zeros(4), np.zeros(())):
        with pytest.raises(PredictorError, match="must answer one row for each"):
            split([from_array("x", wrong)], [1, 2])


def test_rows_without_elements_part_too() -> None:
    empty = from_array("x", np.empty((3, 0), dtype=object))
    assert [part[0].shape for part in split([empty], [1, 2])] == [(1, 0), (2, 0)]
