"""Manifests in files: read with the folder that their paths start from, or refused with the file's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import (
    ManifestError,
)
from trims.registry.base import parse_yaml, read_manifest

if TYPE_CHECKING:
    from pathlib import Path


def test_a_manifest_file_says_where_its_paths_start_from(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.yaml").write_text("{name: m, artifact: {path: m.npz}}")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real" / "m.yaml")
    raw, origin = read_manifest(tmp_path / "link.yaml")
    assert raw["name"] == "m"
    assert origin == str((tmp_path / "real").resolve())


def bomb(levels: int) -> str:
    """A few hundred bytes that stand for 9 ** levels values."""
    lines = ["a0: &a0 x", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels + 1))]
    return "\n".join([*lines, f"name: *a{levels}"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML.*line 1"),
        ("- a\n- b", "must be a mapping"),
        ("", "must be a mapping"),
        ("name: m\nartifact: {path: m.npz}\nnmae: x", "unknown field 'nmae'"),
        ("!!python/object:os.system {}", "is not YAML"),
        ("[" * 3000, "is nested too deeply"),
        ("name: " + "9" * 100_000, "is not YAML.*digits"),
        (bomb(7), "has more than 20000 values, aliases written out"),
        ("name: &a [*a]", "has more than 20000 values"),
        ("x" * 2_000_000, "more than"),
    ],
)
def test_a_manifest_file_that_is_none_is_named_with_what_is_wrong(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ManifestError, match=rf"(?s)bad\.yaml: .*{words}"):
        read_manifest(tmp_path / "bad.yaml")


def test_a_manifest_file_that_is_not_text_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("bad.yaml", "absent.yaml"):
        with pytest.raises(ManifestError, match=name):
            read_manifest(tmp_path / name)


def test_a_text_whose_aliases_stay_within_the_limit_is_read() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: *a") == {"a": [1, 2], "b": [1, 2]}
    assert set(parse_yaml(bomb(4))) == {"a0", "a1", "a2", "a3", "a4", "name"}
    with pytest.raises(ManifestError, match=r"^has more than 20000 values, aliases written out; make it shorter$"):
        parse_yaml(bomb(5))


@given(st.text(max_size=200))
def test_any_text_is_a_mapping_or_a_manifest_error(text: str) -> None:
    try:
        found = parse_yaml(text)
    except ManifestError:
        return
    assert isinstance(found, dict)
