"""Predictor interface."""

from __future__ import annotations

import own_predictors
from trims_predictors import Context, Predictor


def test_a_class_with_the_three_methods_is_a_predictor_and_needs_no_base() -> None:
    assert isinstance(own_predictors.Echo(), Predictor)
    assert not isinstance(own_predictors.NotAPredictor(), Predictor)


def test_a_context_says_what_the_manifest_says() -> None:
    context = Context("m", options={"a": 1})
    assert (context.model, context.options, context.threads) == ("m", {"a": 1}, 1)
