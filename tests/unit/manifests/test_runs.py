"""Frameworks that run models, and models whose requests cannot be answered."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trims.manifests.manifest import parse_manifest
from trims.manifests.runs import framework_in, task_by_signs, why_not_run


def made(artifact: dict[str, Any], **fields: Any) -> Any:
    return parse_manifest({"name": "m", "artifact": {"path": "/m", **artifact}, **fields})


@pytest.mark.parametrize(
    ("artifact", "fields", "found", "framework"),
    [
        ({}, {}, "onnx", "onnxruntime"),
        ({"format": "mxnet"}, {}, "torch", "mxnet"),
        ({"options": {"module": "a:b"}}, {}, "safetensors", "torch"),
        ({}, {"framework": {"name": "numpy"}}, "safetensors", "numpy"),
        ({}, {}, "torch", ""),
    ],
)
def test_a_framework_is_stated_or_that_of_the_format(
    artifact: dict[str, Any], fields: dict[str, Any], found: str, framework: str
) -> None:
    assert framework_in(made(artifact, **fields), found) == framework


@pytest.mark.parametrize(
    ("artifact", "fields", "found", "words"),
    [
        ({}, {}, "torch", "nothing says what runs 'm'"),
        ({}, {}, "safetensors", "nothing says what runs 'm'"),
        ({"format": "npz"}, {}, "", "nothing says what runs 'm'"),
        ({}, {"framework": {"name": "numpy"}}, "npz", "nothing says what runs 'm'"),
        ({}, {"framework": {"name": "torch"}}, "torch", "tensors alone.*options: {module: "),
    ],
)
def test_tensors_without_a_module_are_named_with_what_their_manifest_needs(
    artifact: dict[str, Any], fields: dict[str, Any], found: str, words: str
) -> None:
    assert re.search(words, why_not_run(made(artifact, **fields), found))


@pytest.mark.parametrize(
    ("artifact", "fields", "found"),
    [
        ({}, {}, "onnx"),
        ({}, {}, ""),
        ({"options": {"module": "a:b"}}, {}, "torch"),
        ({"allow_pickle": True}, {"framework": {"name": "torch"}}, "torch"),
        ({}, {"framework": {"name": "transformers"}}, "transformers"),
        ({}, {"predictor": {"call": "a.b:C"}}, "torch"),
        ({}, {"predictor": {"function": "a.b:c"}}, "npz"),
        ({}, {"predictor": {"handler": "f.py:g"}}, "npz"),
        ({}, {"predictor": {"name": "mine"}}, "safetensors"),
    ],
)
def test_a_model_that_something_runs_has_nothing_to_be_said(
    artifact: dict[str, Any], fields: dict[str, Any], found: str
) -> None:
    assert not why_not_run(made(artifact, **fields), found)


def test_a_model_that_has_the_artifact_of_another_is_judged_there() -> None:
    assert not why_not_run(parse_manifest({"name": "m", "artifact": {"model": "other"}}), "torch")


@pytest.mark.parametrize(
    ("task", "files", "lacks"),
    [
        ("fill-mask", ["config.json", "model.safetensors"], "tokenizer"),
        ("fill-mask", ["config.json", "tokenizer_config.json"], ""),
        ("fill-mask", ["config.json", "spiece.model"], ""),
        ("fill-mask", ["config.json", "vocab.txt"], ""),
        ("image-classification", ["config.json", "tokenizer.json"], "image processor"),
        ("image-classification", ["config.json", "preprocessor_config.json"], ""),
        ("automatic-speech-recognition", ["config.json", "tokenizer.json"], "feature extractor"),
        ("fill-mask", [], ""),
    ],
)
def test_a_folder_that_lacks_what_prepares_its_inputs_is_named(task: str, files: list[str], lacks: str) -> None:
    model = made({"format": "transformers", "options": {"task": task}}, framework={"name": "transformers"})
    found = why_not_run(model, "transformers", [f"/models/m/{each}" for each in files])
    assert (f"has no {lacks} beside its weights" in found) == bool(lacks)
    assert bool(found) == bool(lacks)


@pytest.mark.parametrize(
    ("architecture", "task", "told"),
    [("", "fill-mask", "fill-mask"), ("BertForMaskedLM", "fill-mask", ""), ("", "sentence-embedding", "")],
)
def test_a_task_that_no_architecture_says_is_to_be_shown(architecture: str, task: str, told: str) -> None:
    attributes = {"architecture": architecture, "model_type": "bert"}
    assert task_by_signs({"artifact": {"options": {"task": task}}, "attributes": attributes}) == told
    assert not task_by_signs({"artifact": {"path": "/m"}})
