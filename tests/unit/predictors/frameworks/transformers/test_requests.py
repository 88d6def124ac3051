"""Inputs of requests, by the names that clients of different servers use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trims_predictors.frameworks.transformers.requests import Inputs, number, padded, single, strings, truth

from trims.core.errors import CallerError


def texts(*values: str) -> np.ndarray[Any, Any]:
    return np.array([each.encode() for each in values], dtype=object)


def test_the_text_is_found_beside_inputs_that_have_a_role() -> None:
    inputs = Inputs({"anything": texts("a"), "labels": texts("b")})
    assert inputs.texts(others=("labels",)) == ["a"]
    assert inputs.text("labels") == "b"
    assert inputs.text("labels") is None
    inputs.check_all_read()


def test_a_name_that_is_known_comes_before_one_that_is_not() -> None:
    inputs = Inputs({"x": texts("no"), "args": texts("yes")})
    assert inputs.texts() == ["yes"]
    assert inputs.has("x")
    with pytest.raises(CallerError, match="'x'"):
        inputs.check_all_read()


def test_texts_may_be_strings_of_numpys_own_type() -> None:
    assert Inputs({"x": np.array(["a", "b"])}).texts() == ["a", "b"]
    assert Inputs({"x": np.array([b"a"])}).texts() == ["a"]
    assert Inputs({"x": np.array(b"a", dtype=object)}).texts() == ["a"]


def test_one_value_is_one_value() -> None:
    assert number("n", np.array([3])) == 3
    assert truth("n", np.array(True)) is True
    for value in (1, "true"):
        with pytest.raises(CallerError, match="truth value"):
            truth("n", np.array(value))
    for wrong in (np.array([1, 2]), np.array([]), np.array(["3"])):
        with pytest.raises(CallerError, match="'n'"):
            number("n", wrong)
    with pytest.raises(CallerError, match="'n'"):
        single("n", [])


def test_rows_of_different_lengths_are_filled_up() -> None:
    assert padded([[1, 2], [], [3]], np.int64, -1).tolist() == [[1, 2], [-1, -1], [3, -1]]
    assert padded([], np.int64, -1).shape == (0, 0)
    assert strings([]).shape == (0,)
    assert strings(["a"]).tolist() == [b"a"]
    assert strings([["a", "b"], ["c"]]).tolist() == [[b"a", b"b"], [b"c", b""]]
