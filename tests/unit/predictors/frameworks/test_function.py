"""A function as a predictor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from own_functions import answer_nothing, scale
from trims_predictors.api import Context, Predictor
from trims_predictors.frameworks.function import FunctionPredictor

from trims.core.errors import PredictorError

WEIGHTS: Any = {"factor": np.array(2.0)}


def test_the_function_gets_weights_inputs_and_options() -> None:
    predictor = FunctionPredictor(scale)
    assert isinstance(predictor, Predictor)
    predictor.load(WEIGHTS, Context("m", options={"bias": 0.5}))
    assert predictor.predict({"x": np.array([1.0, 2.0])})["y"].tolist() == [2.5, 4.5]
    predictor.unload()
    assert not hasattr(predictor, "_weights")


def test_numbers_and_lists_are_outputs() -> None:
    predictor = FunctionPredictor(lambda weights, inputs: {"a": 1.5, "b": [1, 2]})
    predictor.load(WEIGHTS, Context("m"))
    assert {name: np.asarray(each).tolist() for name, each in predictor.predict({}).items()} == {"a": 1.5, "b": [1, 2]}


def test_a_function_that_returns_no_mapping_is_named() -> None:
    predictor = FunctionPredictor(answer_nothing)
    predictor.load(WEIGHTS, Context("m"))
    with pytest.raises(PredictorError, match="answer_nothing returned NoneType; it must return a dict"):
        predictor.predict({})
