"""The registry: one manifest a name, kept over restarts, and a damaged file that is named and left alone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ConfigError, ManifestError, ModelExistsError, ModelNotFoundError
from trims.registry.base import Registry, read_manifest
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "registry.db"


@pytest.fixture
def registry(path: Path) -> Iterator[SqliteRegistry]:
    made = SqliteRegistry(path)
    yield made
    made.close()


def manifest(name: str = "m", **more: object) -> dict[str, Any]:
    return {"name": name, "artifact": {"path": "m.npz"}, **more}


def test_it_keeps_the_protocol(registry: SqliteRegistry) -> None:
    assert isinstance(registry, Registry)


def test_what_was_put_is_there_in_the_next_life(registry: SqliteRegistry, path: Path) -> None:
    put = registry.put(manifest(version="1.0.0", attributes={"a": [1, {"b": None}]}), "/models")
    registry.close()
    second = SqliteRegistry(path)
    assert second.get("m") == put
    assert second.get("m").origin == "/models"
    second.close()


def test_the_same_manifest_twice_is_fine_and_another_needs_replace(registry: SqliteRegistry) -> None:
    registry.put(manifest(description="one"), "/a")
    registry.put(dict(reversed(manifest(description="one").items())), "/a")
    for other, origin in ((manifest(description="two"), "/a"), (manifest(description="one"), "/b")):
        with pytest.raises(ModelExistsError, match="'m' is registered with another manifest"):
            registry.put(other, origin)
    assert registry.get("m").description == "one"
    registry.put(manifest(description="two"), "/b", replace=True)
    assert (registry.get("m").description, registry.get("m").origin) == ("two", "/b")


def test_a_bad_manifest_changes_nothing(registry: SqliteRegistry) -> None:
    registry.put(manifest(), "")
    for bad in (manifest(colour="red"), {"name": "m"}, manifest(attributes={"x": float("nan")})):
        with pytest.raises(ManifestError):
            registry.put(bad, "", replace=True)
    assert registry.get("m").attributes == {}


def test_a_value_yaml_has_and_json_has_not_is_refused_with_the_remedy(registry: SqliteRegistry) -> None:
    from datetime import date

    with pytest.raises(ManifestError, match=r"m: holds a value JSON cannot carry.*quote it"):
        registry.put(manifest(attributes={"since": date(2020, 1, 1)}), "")


def test_names_are_sorted_and_go_when_they_are_removed(registry: SqliteRegistry) -> None:
    for name in "bca":
        registry.put(manifest(name), "")
    assert registry.names() == ["a", "b", "c"]
    registry.remove("b")
    assert registry.names() == ["a", "c"]
    with pytest.raises(ModelNotFoundError):
        registry.remove("b")


@pytest.mark.parametrize(
    ("asked", "hint"), [("resnet51", "did you mean resnet50?"), ("zzz", "`trims add` registers one")]
)
def test_an_unknown_name_is_told_the_nearest(registry: SqliteRegistry, asked: str, hint: str) -> None:
    registry.put(manifest("resnet50"), "")
    with pytest.raises(ModelNotFoundError) as caught:
        registry.get(asked)
    assert str(caught.value).endswith(hint)


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_named_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database"):
        SqliteRegistry(path)
    assert path.read_bytes() == content


def test_threads_may_use_it_at_once(registry: SqliteRegistry) -> None:
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                registry.put(manifest(f"m{number}", description=str(turn)), "", replace=True)
                assert registry.get(f"m{number}").description == str(turn)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert registry.names() == ["m0", "m1", "m2", "m3"]


def test_closing_twice_is_fine(registry: SqliteRegistry) -> None:
    registry.close()
    registry.close()


def test_a_manifest_file_says_where_its_paths_start_from(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.yaml").write_text("{name: m, artifact: {path: m.npz}}")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real" / "m.yaml")
    raw, origin = read_manifest(tmp_path / "link.yaml")
    assert raw["name"] == "m"
    assert origin == str((tmp_path / "real").resolve())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML.*line 1"),
        ("- a\n- b", "must be a mapping"),
        ("", "must be a mapping"),
        ("name: m\nartifact: {path: m.npz}\nnmae: x", "unknown field 'nmae'"),
        ("!!python/object:os.system {}", "is not YAML"),
        ("[" * 3000, "is not YAML"),
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
