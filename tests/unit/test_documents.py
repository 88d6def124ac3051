"""YAML that users write: one key twice is refused with its lines, and versions stay as they were written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trims.core.errors import ManifestError
from trims.documents import load_yaml
from trims.manifests.manifest import parse_manifest
from trims.registry.base import parse_yaml

MANIFEST = "name: TestModel\nartifact: {path: w.bin}\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb: 2\na: 3\n", "lines 1 and 3"),
        ("x:\n  - {a: 1,\n     a: 2}\n", "lines 2 and 3"),
        ('{"b": {"a": 1, "a": 1}}', "lines 1 and 1"),
        ("a: 1\n'a': 2\n", "lines 1 and 2"),
    ],
)
def test_a_key_that_is_there_twice_is_named_with_its_lines(text: str, lines: str) -> None:
    with pytest.raises(yaml.YAMLError, match=f"the key 'a' is there twice, in {lines}"):
        load_yaml(text)
    with pytest.raises(ManifestError, match="is there twice"):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["{1: a, 0x1: b}", "{true: a, yes: b}", "x: &x {a: 1}\ny: {<<: *x, <<: *x}\n"])
def test_keys_that_are_one_in_two_spellings_are_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="is there twice"):
        load_yaml(text)


def test_equal_keys_of_two_mappings_and_merged_ones_are_fine() -> None:
    assert load_yaml("x: {a: 1}\ny: {a: 2}\n") == {"x": {"a": 1}, "y": {"a": 2}}
    assert load_yaml("x: &x {a: 1}\ny: {<<: *x, a: 2}\n")["y"] == {"a": 2}
    nested = "z: &z {k: 1}\na: {b: &x {<<: *z, k: 2}}\ny: {<<: *x}\n"
    assert load_yaml(nested)["a"]["b"] == {"k": 2}
    assert load_yaml("") is None


@pytest.mark.parametrize(
    ("written", "version"),
    [
        ("1", "1"), ("1.10", "1.10"), ("1.0", "1.0"), ("v1.2.3", "v1.2.3"), ("2024-11-01", "2024-11-01"),
        ("1_000", "1_000"), ('"1"', "1"), ("1.2.3-rc.1+build", "1.2.3-rc.1+build"),
    ],
)  # fmt: skip
def test_a_version_is_the_text_that_was_written(written: str, version: str) -> None:
    manifest = parse_manifest(parse_yaml(f"{MANIFEST}version: {written}\n"))
    assert (manifest.name, manifest.version) == ("TestModel", version)


@pytest.mark.parametrize("written", ["1.0.0-rc.", "1.0.0-rc-", "1." + "0" * 126])
def test_versions_that_were_accepted_before_still_are(written: str) -> None:
    assert parse_manifest(parse_yaml(f"{MANIFEST}version: {written}\n")).version == written


def test_the_version_of_a_framework_is_the_text_that_was_written() -> None:
    manifest = parse_manifest(parse_yaml(f"{MANIFEST}framework: {{name: torch, version: 2.10}}\n"))
    assert manifest.framework is not None
    assert manifest.framework.version == "2.10"


def test_a_version_by_an_alias_is_text_and_leaves_the_number_it_names() -> None:
    raw = parse_yaml("attributes: {x: &v 1.10}\nversion: *v\n")
    assert raw == {"attributes": {"x": 1.1}, "version": "1.10"}
    raw = parse_yaml("attributes: {x: &f {name: torch, version: 2.10}}\nframework: *f\n")
    assert raw["attributes"]["x"]["version"] == 2.1
    assert raw["framework"] == {"name": "torch", "version": "2.10"}


def test_a_merged_version_is_the_text_that_was_written() -> None:
    raw = parse_yaml("attributes: &a {version: 010}\n<<: *a\n")
    assert raw == {"attributes": {"version": 8}, "version": "010"}


@pytest.mark.parametrize(
    "value",
    ["!!bool maybe", "!!timestamp soon", "!!int ''", "!!float ''", "!!int abc", "2024-13-45",
     pytest.param("1" + ":00" * 400 + ".5", id="sexagesimal"), pytest.param("0x" + "f" * 6000, id="hexadecimal"),
     pytest.param("9" * 6000, id="decimal")],
)  # fmt: skip
@pytest.mark.parametrize("where", ["attributes: {a: %s}", "attributes: {? %s : 1}", "name: %s", "version: [%s]"])
def test_a_value_without_a_meaning_is_refused_with_its_line(where: str, value: str) -> None:
    with pytest.raises(ManifestError, match=r"line 2\b") as caught:
        parse_yaml("# a manifest\n" + where % value)
    assert len(str(caught.value)) < 300


def test_other_numbers_stay_numbers() -> None:
    raw = parse_yaml(f"{MANIFEST}attributes: {{version: 1.10}}\n")
    assert raw["attributes"] == {"version": 1.1}


def test_a_version_of_a_program_may_be_a_whole_number_and_no_other() -> None:
    given: dict[str, Any] = {"name": "m", "artifact": {"path": "w.bin"}}
    assert parse_manifest({**given, "version": 3}).version == "3"
    for wrong in (1.1, True, ["1"]):
        with pytest.raises(ManifestError, match=r"'version' must be text.*quote it"):
            parse_manifest({**given, "version": wrong})
    with pytest.raises(ManifestError, match="'version' has more than 128 digits"):
        parse_manifest({**given, "version": 10**5000})


@pytest.mark.parametrize("name", ["TestModel", "a", "_m", "Bert_Base-v1.2", "M"])
def test_names_of_existing_deployments_are_accepted(name: str) -> None:
    assert parse_manifest({"name": name, "artifact": {"path": "w.bin"}}).name == name


@pytest.mark.parametrize("name", [".", "..", "-m", "m/n", "m@1", "m#cpu", "m n", ".m", "m.", "\u00fc", "m" * 129])
def test_names_that_would_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(ManifestError, match="name: is"):
        parse_manifest({"name": name, "artifact": {"path": "w.bin"}})


@pytest.mark.parametrize("text", ["&r {version: *r}", "&r {<<: *r, version: 1}", "framework: &f {version: *f}"])
def test_a_mapping_that_holds_itself_ends_in_a_manifest_error(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(parse_yaml(text))
