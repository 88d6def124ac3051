"""Steps of a manifest: what the parser takes, what it refuses, and that the schema for editors says the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trims.core.errors import ManifestError
from trims.manifests.manifest import parse_manifest
from trims.manifests.step_fields import KINDS, MOST_STEPS, parse_steps
from trims.manifests.steps import CALL_STEP, SOURCE_STEP, Step

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "manifests" / "schema.json").read_text())
PACKAGE = {"package": {"name": "some.package", "path": "a/tokenizer.json"}}
#: Each step with all of its fields.
WHOLE: dict[str, Any] = {
    "decode_image": {"output": "y", "keep": True, "layout": "BGR", "upright": True, "max_pixels": 1000},
    "resize": {"size": [2, 3], "filter": "bicubic"},
    "center_crop": {"size": 224},
    "normalize": {"scale": "1/255", "mean": [0.5, 0.5, 0.5], "std": 0.25, "channels": "first"},
    "layout": {"to": "NCHW"},
    "cast": {"dtype": "FP16"},
    "tokenize": {
        "tokenizer": PACKAGE, "max_length": 128, "truncation": False, "padding": "max_length", "pad_token": "<pad>",
        "special_tokens": False, "outputs": ["token_type_ids", "input_ids"],
    },
    "softmax": {"axis": 0},
    "top_k": {"k": 3, "labels": "labels.txt", "outputs": {"scores": "best", "labels": "names"}},
    "argsort": {"axis": -2, "descending": True},
    "mean_pool": {"mask": "mask"},
    "l2_normalize": {"axis": 1},
}  # fmt: skip


def manifest(*steps: Any, **fields: Any) -> dict[str, Any]:
    return {"name": "m", "artifact": {"path": "m.safetensors"}, "preprocess": list(steps), **fields}


def one(raw: Any) -> Step:
    (step,) = parse_steps([raw], "m: preprocess")
    return step


def test_every_step_is_in_the_schema_and_in_this_test() -> None:
    known = set(SCHEMA["$defs"]["steps"]["items"]["properties"])
    assert known == {*KINDS, CALL_STEP, SOURCE_STEP, "function", "options"}
    assert WHOLE.keys() == KINDS.keys()


def test_every_step_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "steps.md").read_text(), re.MULTILINE)
    assert {*KINDS, CALL_STEP, SOURCE_STEP} <= set(rows)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_all_fields_of_a_step_are_read_and_fit_the_schema(kind: str) -> None:
    raw = {kind: {"input": "x", **WHOLE[kind]}}
    jsonschema.validate(manifest(raw), SCHEMA)
    step = one(raw)
    assert (step.kind, step.is_function) == (kind, False)
    assert step.reads == (("x", "mask") if kind == "mean_pool" else ("x",))
    stated = SCHEMA["$defs"][KINDS[kind].__name__]["properties"]
    assert {"output", "outputs"} & stated.keys()
    assert step.fields.keys() == (stated.keys() - {"output"}) | {"outputs"}


def test_what_a_manifest_leaves_out_has_its_default() -> None:
    assert one({"softmax": {"input": "x"}}).fields == {"input": "x", "keep": False, "axis": -1, "outputs": ["x"]}
    tokenize = one({"tokenize": {"input": "text", "tokenizer": "t.json"}})
    assert tokenize.writes == ("input_ids", "attention_mask")
    assert tokenize.fields["tokenizer"] == {"path": "t.json"}
    assert (tokenize.fields["max_length"], tokenize.fields["truncation"]) == (512, True)
    assert one({"top_k": {"input": "x"}}).writes == ("scores", "indices")
    assert one({"top_k": {"input": "x", **WHOLE["top_k"]}}).writes == ("best", "indices", "names")
    assert one({"normalize": {"input": "x", "scale": "1/255"}}).fields["scale"] == 1 / 255
    assert one({"resize": {"input": "x", "size": 5}}).fields["size"] == [5, 5]
    assert one({"mean_pool": {"input": "x"}}).reads == ("x", "attention_mask")


def test_functions_are_named_or_stand_in_the_manifest() -> None:
    named = {"call": "m.n:f", "options": {"a": 1}}
    inline = {"source": "def step(context, data): return data\n"}
    jsonschema.validate(manifest(named, inline), SCHEMA)
    assert one(named) == Step("call", {"call": "m.n:f", "options": {"a": 1}})
    assert one(inline).fields == {**inline, "function": "step", "options": {}}
    assert one(named).is_function
    assert one(named).reads == one(named).writes == ()


def test_a_manifest_has_both_lists() -> None:
    found = parse_manifest(manifest({"softmax": {"input": "a"}}, postprocess=[{"argsort": {"input": "b"}}]))
    assert [each.kind for each in (*found.preprocess, *found.postprocess)] == ["softmax", "argsort"]
    assert parse_manifest(manifest(preprocess=None)).preprocess == ()


@pytest.mark.parametrize(
    "raw",
    [
        "softmax",
        {},
        {"unknown": {"input": "x"}},
        {"softmax": {"input": "x"}, "argsort": {"input": "x"}},
        {"softmax": {}},
        {"softmax": {"input": ""}},
        {"softmax": {"input": "x", "axis": 1.5}},
        {"softmax": {"input": "x", "axis": True}},
        {"softmax": {"input": "x", "more": 1}},
        {"softmax": {"input": "x"}, "options": {}},
        {"softmax": {"input": "x", "keep": 1}},
        {"decode_image": {"input": "x", "layout": "HSV"}},
        {"decode_image": {"input": "x", "max_pixels": 0}},
        {"resize": {"input": "x"}},
        {"resize": {"input": "x", "size": 4, "shorter_side": 4}},
        {"resize": {"input": "x", "size": [1, 2, 3]}},
        {"resize": {"input": "x", "size": 0}},
        {"resize": {"input": "x", "size": 4, "filter": "nearest"}},
        {"center_crop": {"input": "x"}},
        {"center_crop": {"input": "x", "size": "4"}},
        {"normalize": {"input": "x", "scale": "1/x"}},
        {"normalize": {"input": "x", "mean": []}},
        {"normalize": {"input": "x", "mean": ["a"]}},
        {"layout": {"input": "x"}},
        {"layout": {"input": "x", "to": "CWH"}},
        {"cast": {"input": "x", "dtype": "BYTES"}},
        {"tokenize": {"input": "x"}},
        {"tokenize": {"input": "x", "tokenizer": {}}},
        {"tokenize": {"input": "x", "tokenizer": {"package": {"name": "p"}}}},
        {"tokenize": {"input": "x", "tokenizer": "t", "outputs": ["ids"]}},
        {"tokenize": {"input": "x", "tokenizer": "t", "outputs": ["input_ids", "input_ids"]}},
        {"tokenize": {"input": "x", "tokenizer": "t", "outputs": []}},
        {"tokenize": {"input": "x", "tokenizer": "t", "max_length": 0}},
        {"top_k": {"input": "x", "k": 0}},
        {"top_k": {"input": "x", "outputs": {"score": "s"}}},
        {"call": "no_colon"},
        {"call": "m:f", "options": []},
        {"call": "m:f", "function": "f"},
        {"source": 1},
        {"source": "x = 1", "function": "not a name"},
    ],
)
def test_a_wrong_step_is_refused_by_the_parser_and_by_the_schema(raw: Any) -> None:
    with pytest.raises(ManifestError, match=r"preprocess\[0\]"):
        parse_manifest(manifest(raw))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest(raw), SCHEMA)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"normalize": {"input": "x", "std": [1.0, 0.0]}}, "'std' has a zero"),
        ({"normalize": {"input": "x", "scale": "1/0"}}, "scale: is '1/0'; write a finite number"),
        ({"normalize": {"input": "x", "mean": [float("nan")]}}, "mean: is nan; write a finite number"),
        ({"tokenize": {"input": "x", "tokenizer": "../t.json"}}, "leaves its folder"),
        ({"tokenize": {"input": "x", "tokenizer": {"package": {"name": "p", "path": "/t"}}}}, "leaves its folder"),
        ({"top_k": {"input": "x", "outputs": {"scores": "a", "indices": "a"}}}, "two tensors one name"),
        ({"top_k": {"input": "x", "outputs": {"labels": "a"}}}, "unknown field 'labels'"),
        ({"softmax": {"input": "x", "keep": True}}, "'keep' needs an 'output' of another name"),
        ({}, r"exactly one step of decode_image, .*source; it names none"),
        ({"resizze": {"input": "x"}}, r"exactly one step of decode_image, .*; it names 'resizze', which is none"),
        ({"normalize": {"input": "x", "mean": [1, 2, 3], "std": [1, 2]}}, "'mean' has 3 numbers and 'std' 2; write"),
        ({"tokenize": {"input": "x", "tokenizer": "t", "outputs": []}}, "'outputs' is an empty list; write some of"),
    ],
)
def test_the_error_names_the_field_and_the_remedy(raw: Any, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        one(raw)


def test_a_list_has_an_end() -> None:
    step = {"softmax": {"input": "x"}}
    assert len(parse_steps([step] * MOST_STEPS, "m")) == MOST_STEPS
    for wrong in ([step] * (MOST_STEPS + 1), step, "softmax"):
        with pytest.raises(ManifestError, match="must be a list of at most 64 steps"):
            parse_steps(wrong, "m")
    with pytest.raises(ManifestError, match="put source into a module beside the manifest"):
        parse_steps([{"source": "x" * 30_000}], "m")
