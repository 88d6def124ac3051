"""Manifests: what is accepted, and what every refusal names."""

# fault (damage): unknown fields, wrong types, paths outside the folder -> `bad_manifest` with the field

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from repository import ROOT

from trims.core.errors import ManifestError
from trims.manifests.manifest import parse_manifest
from trims.registry.base import parse_yaml, read_manifest

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL = {"name": "m", "artifact": {"path": "m.safetensors"}}


def with_field(path: str, value: Any) -> dict[str, Any]:
    """The minimal manifest with one field set, by a dotted path."""
    made: dict[str, Any] = json.loads(json.dumps(MINIMAL))
    *folders, last = path.split(".")
    where = made
    for folder in folders:
        where = where.setdefault(folder, {})
    where[last] = value
    return made


def test_the_smallest_manifest_has_the_documented_defaults() -> None:
    manifest = parse_manifest(MINIMAL, "/folder")
    assert manifest.artifact.path == "m.safetensors"
    assert manifest.residency.place is None
    assert manifest.residency.keep_alive_s is None
    assert not manifest.residency.pin
    assert not manifest.artifact.allow_pickle
    assert manifest.origin == "/folder"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("name", "up/per", "name"),
        ("name", "../up", "name"),
        ("name", "", "name"),
        ("name", 5, "name"),
        ("name", "a" * 129, "129 letters"),
        ("version", "1/0", "write letters, digits"),
        ("version", "", "empty"),
        ("version", 1.0, "quote it"),
        ("surprise", 1, "surprise"),
        ("framework", {"name": "caffe"}, "torch"),
        ("framework", {"version": ">=1"}, "name"),
        ("framework", "torch", "mapping"),
        ("artifact.path", "../weights.bin", "leaves its folder"),
        ("artifact.path", "a/../../b", "leaves its folder"),
        ("artifact.path", ["a"], "path"),
        ("artifact.surprise", 1, "surprise"),
        ("artifact.allow_pickle", "yes", "true or false"),
        ("artifact.trust", "blind", "identity, verified"),
        ("artifact.options", [1], "options"),
        ("artifact.sha256", {"m": "abc"}, "64"),
        ("artifact.sha256", {"../m": "0" * 64}, "leaves its folder"),
        ("artifact.package", {"name": "p", "path": "m"}, "exactly one"),
        ("artifact.package", {"name": "not a module", "path": "m"}, "import name"),
        ("artifact.builder", {"call": "no colon"}, "package.module:function"),
        ("residency.place", "moon", "moon"),
        ("residency.keep_alive_s", -1, "keep_alive_s"),
        ("residency.keep_alive_s", float("nan"), "keep_alive_s"),
        ("residency.keep_alive_s", True, "keep_alive_s"),
        ("residency.persist", "maybe", "auto"),
        ("residency.pin", 1, "true or false"),
        ("attributes", "text", "attributes"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any, named: str) -> None:
    with pytest.raises(ManifestError, match=named):
        parse_manifest(with_field(field, value))


@pytest.mark.parametrize("raw", [None, [], "text", 5, {}, {"name": "m"}, {1: 2}, {"artifact": {"path": "m"}}])
def test_what_is_no_manifest_at_all_is_refused(raw: object) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(raw)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_whatever_comes_is_a_manifest_or_a_manifest_error(raw: object) -> None:
    try:
        parse_manifest(raw)
    except ManifestError:
        return
    pytest.fail("random data is no manifest")


def test_yaml_that_does_not_parse_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: m\nartifact: {path: [}\n")
    with pytest.raises(ManifestError, match=r"(?s)bad\.yaml.*line 2"):
        read_manifest(path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"absent\.yaml"):
        read_manifest(tmp_path / "absent.yaml")


def test_yaml_cannot_make_python_objects(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text("!!python/object/apply:os.system ['true']\n")
    with pytest.raises(ManifestError, match="not YAML"):
        read_manifest(path)


SHIPPED = sorted((ROOT / "manifests").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_manifests_parse_and_fit_the_schema(path: Path) -> None:
    raw, origin = read_manifest(path)
    assert parse_manifest(raw, origin).name == path.stem
    schema = json.loads((ROOT / "manifests" / "schema.json").read_text())
    jsonschema.validate(raw, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "wrong",
    [with_field("surprise", 1), with_field("name", "up/per"), with_field("version", ""), with_field("artifact.path", 3),
     with_field("residency.persist", "maybe"), with_field("framework", {"name": "caffe"}), {"name": "m"}],
)  # fmt: skip
def test_the_schema_refuses_what_the_parser_refuses(wrong: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "manifests" / "schema.json").read_text())
    with pytest.raises(ManifestError):
        parse_manifest(wrong)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("written", ["1", "1.10", "v1.2", "1.0.0-rc."])
def test_the_schema_takes_versions_as_editors_read_them(written: str) -> None:
    text = f"name: TestModel\nartifact: {{path: m.bin}}\nversion: {written}\n"
    parse_manifest(parse_yaml(text))
    schema = json.loads((ROOT / "manifests" / "schema.json").read_text())
    jsonschema.validate(yaml.safe_load(text), schema, cls=jsonschema.Draft202012Validator)


def test_a_manifest_survives_yaml() -> None:
    assert parse_manifest(yaml.safe_load(yaml.safe_dump(MINIMAL))) == parse_manifest(MINIMAL)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"artifact": {"model": "a b"}}, "write the name of a registered model"),
        ({"artifact": {"model": "b", "path": "/x"}}, "needs exactly one of path, package, builder, uri and model"),
        ({"artifact": {"model": "b", "format": "onnx"}}, "has 'model' and 'format', which that model states"),
        ({"artifact": {"model": "b"}, "residency": {"pin": True}}, "has 'residency', which the model 'b' states"),
        ({"artifact": {"model": "m"}}, "its artifact is its own"),
        (
            {
                "artifact": {"model": "b"},
                "predictor": {"handler": "f.py:h"},
                "inputs": [{"name": "x", "dtype": "FP32", "shape": [1]}],
            },
            "has 'inputs' and a handler",
        ),
    ],
)
def test_what_a_reference_to_a_model_may_not_state_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse_manifest({"name": "m", **fields})
    assert parse_manifest({"name": "m", "artifact": {"model": "b"}}).artifact.model == "b"
