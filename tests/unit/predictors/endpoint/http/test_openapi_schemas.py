"""Schemas of the OpenAPI document: each is a schema, and examples of requests fit theirs."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from trims_predictors.endpoint.http.openapi_schemas import SCHEMAS


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_each_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("EvaluationOrder", {"model": "m", "from": ["cpu"], "batch": [1]}, True),
        ("EvaluationOrder", {"model": "m", "from": "cpu"}, False),
        ("InferRequest", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}, True),
        ("InferRequest", {}, False),
        ("Nothing", {"x": 1}, False),
    ],
)
def test_values_fit_or_not(name: str, value: Any, fits: bool) -> None:
    assert jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid(value) == fits
