"""Manifests from elsewhere, and those that go there: which fields count, and which are refused."""

# fault (sources): a manifest from elsewhere names code, hosts or files -> `address_refused` with the field

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import AddressRefusedError, ManifestError
from trims.manifests.foreign import foreign_fields, foreign_manifest, left_out, portable_fields, portable_recipe

if TYPE_CHECKING:
    from pathlib import Path


def test_fields_of_this_machine_are_not_taken() -> None:
    raw = {
        "name": "x", "artifact": {"path": "/etc/passwd"}, "residency": {"pin": True}, "environment": "e",
        "framework": {"name": "torch"}, "license": "MIT",
    }  # fmt: skip
    assert foreign_fields(raw, "s3://b/m") == {"framework": {"name": "torch"}, "license": "MIT"}


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd",
        "~/x",
        "../x",
        "a/../../x",
        "a\\..\\x",
        "file:///x",
        "http://169.254.169.254/",
        "s3://b/k",
        "os:system",
    ],
)
def test_a_field_that_leads_to_a_file_a_host_or_code_is_refused_with_its_place(value: str) -> None:
    raw: dict[str, Any] = {"preprocess": [{"step": {"file": "x", "deep": [1, value]}}]}
    with pytest.raises(AddressRefusedError) as raised:
        foreign_fields(raw, "s3://b/m")
    assert "s3://b/m" in str(raised.value)
    assert "preprocess[0].step.deep[1]" in str(raised.value)


def test_what_is_for_people_may_name_anything() -> None:
    raw = {"description": "see https://h and ../x", "attributes": {"paper": "https://h"}}
    assert foreign_fields(raw, "s3://b/m") == raw


def test_a_field_that_names_a_file_beside_the_manifest_here_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("secret")
    raw = {"outputs": [{"name": "words.txt"}]}
    assert foreign_fields(raw, "s3://b/m") == raw
    with pytest.raises(AddressRefusedError, match="file of this machine"):
        foreign_fields(raw, "s3://b/m", str(tmp_path))
    assert foreign_fields({"outputs": [{"name": "x" * 5000}]}, "s3://b/m", str(tmp_path))


@pytest.mark.parametrize(
    "raw",
    [
        {"outputs": [{"labels": "words.txt"}]},
        {"postprocess": [{"top_k": {"labels": "words.txt"}}]},
        {"preprocess": [{"tokenize": {"tokenizer": "tokenizer.json"}}]},
    ],
    ids=str,
)
def test_a_file_that_does_not_come_with_the_model_is_refused_and_not_pushed(raw: dict[str, Any]) -> None:
    with pytest.raises(AddressRefusedError, match="does not come with the model"):
        foreign_fields(raw, "s3://b/m")
    assert portable_fields(raw, "") == ({}, [*raw])


def test_an_output_of_a_step_may_be_called_labels() -> None:
    raw = {"postprocess": [{"top_k": {"outputs": {"labels": "names"}}}]}
    assert foreign_fields(raw, "s3://b/m") == raw


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"description": "x" * 10_001}, "letters: description"),
        ({"license": "x" * 10_001}, "letters: license"),
        ({"attributes": {"deep": ["x" * 10_001]}}, r"letters: attributes\.deep\[0\]"),
        ({"attributes": {"k" * 10_001: "x"}}, "letters: attributes.kkk"),
    ],
    ids=["description", "license", "attribute", "key"],
)
def test_a_text_that_is_too_long_is_refused_by_its_name(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ManifestError, match=named) as raised:
        foreign_fields(raw, "s3://b/m")
    assert len(str(raised.value)) < 300
    assert foreign_fields({"description": "x" * 10_000}, "s3://b/m")


def test_consent_to_code_of_an_artifact_is_not_given_from_elsewhere() -> None:
    raw = {"name": "m", "artifact": {"path": "m.safetensors", "options": {"allow_pickle": True}}}
    with pytest.raises(AddressRefusedError, match="allow_pickle"):
        foreign_manifest(raw, "https://h/m.yaml")


def test_a_recipe_goes_elsewhere_without_what_lay_here() -> None:
    recipe = {
        "format": "torch", "converter": 3, "frameworks": {"torch": "2.4.1+cpu"}, "cpu": "avx2 fma",
        "options": {"module": "my.net:Net", "state_key": "net", "module_args": {"x": "/home/me/x"}, "ignore": []},
        "builder": {"origin": "/home/me/tm", "sha256": "0" * 64}, "later": ["/home/me"],
    }  # fmt: skip
    assert portable_recipe(recipe) == {
        "format": "torch", "converter": 3, "frameworks": {"torch": "2.4.1+cpu"}, "cpu": "avx2 fma",
        "options": {"state_key": "net", "ignore": []},
    }  # fmt: skip


def test_fields_that_are_not_taken_are_named() -> None:
    assert left_out({"artifact": {}, "license": "MIT", "residency": {}, "colour": 1}) == [
        "artifact", "colour", "residency",
    ]  # fmt: skip


def test_what_names_files_or_code_here_stays_here_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("w")
    raw = {
        "framework": {"name": "torch"}, "preprocess": [{"call": "my.mod:fn"}], "inputs": [{"name": "x"}],
        "outputs": [{"labels": "words.txt"}], "artifact": {"path": "m.pt"},
    }  # fmt: skip
    assert portable_fields(raw, str(tmp_path)) == (
        {"framework": {"name": "torch"}}, ["preprocess", "outputs", "inputs"],
    )  # fmt: skip
    assert portable_fields({"inputs": [{"name": "x"}]}, "") == ({"inputs": [{"name": "x"}]}, [])


def test_a_manifest_from_elsewhere_names_no_handler_and_no_model_of_this_machine() -> None:
    with pytest.raises(AddressRefusedError, match=r"names code \(predictor.handler: 'sub/f.py:h'\)"):
        foreign_fields({"predictor": {"handler": "sub/f.py:h"}}, "hf://a/b")
    with pytest.raises(AddressRefusedError, match=r"has artifact.model"):
        foreign_manifest({"name": "m", "artifact": {"model": "b"}}, "https://host/m.yaml")
    assert portable_fields({"predictor": {"handler": "f.py:h"}, "version": "1"}, "") == (
        {"version": "1"},
        ["predictor"],
    )
