"""Predictors as a manifest describes them, and what goes in and comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trims.core.errors import ManifestError
from trims.manifests.manifest import parse_manifest
from trims.manifests.predictor import PredictorSettings, parse_predictor
from trims.manifests.serving import ITEM_BYTES, TensorType

SCHEMA = json.loads((Path(__file__).parents[3] / "manifests" / "schema.json").read_text())
PREDICTOR = {
    "call": "m:Class", "options": {"a": 1}, "preload": ["scipy.ndimage"], "instances": 2, "threads": 1,
    "max_batch_size": 8, "batch_delay_s": 0.01, "keep_alive_s": 60, "deadline_s": 5.5,
}  # fmt: skip
X = {"name": "x", "dtype": "FP32", "shape": [-1, 3]}


def manifest(**fields: Any) -> dict[str, Any]:
    return {"name": "m", "artifact": {"path": "m.safetensors"}, **fields}


def test_everything_a_manifest_may_say_of_its_predictor_is_read() -> None:
    whole = manifest(predictor=PREDICTOR, inputs=[X], outputs=[{**X, "name": "y", "dtype": "BYTES", "shape": []}])
    jsonschema.validate(whole, SCHEMA)
    found = parse_manifest(whole)
    assert found.predictor == PredictorSettings("m:Class", {"a": 1}, ("scipy.ndimage",), 2, 1, 8, 0.01, 60.0, 5.5)
    assert found.inputs == (TensorType("x", "FP32", (-1, 3)),)
    assert found.outputs == (TensorType("y", "BYTES", ()),)


def test_a_manifest_need_not_say_anything() -> None:
    assert parse_predictor(None, "m") == PredictorSettings()


@pytest.mark.parametrize(
    "fields",
    [
        {"predictor": {"call": "no_colon"}},
        {"predictor": {"preload": ["a b"]}},
        {"predictor": {"preload": "torch"}},
        {"predictor": {"instances": 0}},
        {"predictor": {"hot": 65}},
        {"predictor": {"threads": -1}},
        {"predictor": {"max_batch_size": 1.5}},
        {"predictor": {"keep_alive_s": -1}},
        {"predictor": {"unknown": 1}},
        {"predictor": {"function": "no_colon"}},
        {"predictor": {"name": "two words"}},
        {"predictor": {"call": "m:C", "name": "n"}},
        {"predictor": {"function": "m:f", "name": "n"}},
        {"predictor": []},
        {"predictor": {"default_priority_level": 65}},
        {"inputs": {"x": "FP32"}},
        {"inputs": [{**X, "dtype": "F32"}]},
        {"inputs": [{**X, "shape": [-2]}]},
        {"inputs": [{**X, "shape": [1.5]}]},
        {"inputs": [{**X, "shape": None}]},
        {"inputs": [{**X, "shape": [1] * 33}]},
        {"inputs": [{"dtype": "FP32", "shape": []}]},
        {"outputs": [{**X, "more": 1}]},
    ],
)
def test_what_is_wrong_is_refused_by_the_parser_and_by_the_schema(fields: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(manifest(**fields))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest(**fields), SCHEMA)


def test_a_delay_of_batches_without_batches_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"'batch_delay_s'.*state `max_batch_size`"):
        parse_manifest(manifest(predictor={"batch_delay_s": 0.1}))
    with pytest.raises(ManifestError, match="'batch_delay_s'"):
        parse_manifest(manifest(predictor={"batch_delay_s": 0.1, "max_batch_size": 0}))
    assert parse_predictor({"batch_delay_s": 0, "threads": 0, "max_batch_size": 0}, "m") == PredictorSettings()


def test_a_predictor_is_a_class_a_function_or_an_installed_one() -> None:
    for stated in ({"call": "m:Class"}, {"function": "m:function"}, {"name": "my-predictor"}):
        jsonschema.validate(manifest(predictor=stated), SCHEMA)
        ((key, value),) = stated.items()
        assert getattr(parse_predictor(stated, "m"), key) == value
    with pytest.raises(ManifestError, match="m: predictor: has call and function; state one of them"):
        parse_predictor({"call": "m:C", "function": "m:f"}, "m")


def test_every_data_type_of_the_schema_is_known() -> None:
    known = SCHEMA["$defs"]["Input"]["properties"]["dtype"]["enum"]
    assert set(known) == set(ITEM_BYTES)


def test_the_default_level_of_priority_is_the_one_in_the_middle_and_one_of_them() -> None:
    found = [parse_predictor({"priority_levels": levels}, "m").default_priority_level for levels in (0, 1, 4, 5)]
    assert found == [0, 1, 2, 3]
    assert parse_predictor({"priority_levels": 4, "default_priority_level": 4}, "m").default_priority_level == 4
    for wrong in ({"default_priority_level": 1}, {"priority_levels": 4, "default_priority_level": 0}):
        with pytest.raises(ManifestError, match="m: predictor: 'default_priority_level' is"):
            parse_predictor(wrong, "m")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"handler": "f.py"}, "write FILE.py:NAME"),
        ({"handler": "../f.py:h"}, "leaves its folder"),
        ({"handler": "f.py:h", "call": "m:C"}, "has call and handler; state one"),
        ({"handler": "f.py:h", "options": {"as": "tensorflow"}}, "a handler gets its model as weights, torch"),
        ({"handler": "f.py:h", "max_batch_size": 8}, "'max_batch_size' is for tensors"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse_predictor(fields, "m")
    assert parse_predictor({"handler": "/a/f.py:h"}, "m").handler == "/a/f.py:h"
