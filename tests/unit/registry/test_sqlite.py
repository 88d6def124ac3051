"""The registry: one manifest a name, kept over restarts, and a damaged file that is named and left alone."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import (
    CapacityError,
    ConfigError,
    InUseError,
    ManifestError,
    ModelExistsError,
    ModelNotFoundError,
)
from trims.registry import database
from trims.registry.base import Registry, read_manifest
from trims.registry.sqlite import SqliteRegistry
from trims.testing.descriptors import few_descriptors

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


def rows(path: Path, count: int) -> None:
    """A registry of so many models, closed in order."""
    made = SqliteRegistry(path)
    for number in range(count):
        made.put(manifest(f"m{number}", description="x" * 500), "")
    made.close()


def left_log(path: Path, count: int) -> bytes:
    """The log that a registry of so many models leaves when its process is killed after it changed some."""
    rows(path, count)
    made = SqliteRegistry(path)
    for number in range(0, count, 30):
        made.put(manifest(f"m{number}", description="y" * 500), "", replace=True)
    log = path.with_name(f"{path.name}-wal").read_bytes()
    made.close()
    return log


def test_a_log_of_another_database_is_named_and_the_database_is_not_harmed(path: Path, tmp_path: Path) -> None:
    rows(path, 200)
    before, log = path.read_bytes(), path.with_name("registry.db-wal")
    log.write_bytes(left_log(tmp_path / "other.db", 100))
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"registry\.db and registry\.db-wal .* one may have been replaced .* move"
        ):
            SqliteRegistry(path)
    assert path.read_bytes() == before
    log.unlink()
    path.with_name("registry.db-shm").unlink(missing_ok=True)
    again = SqliteRegistry(path)
    assert len(again.names()) == 200
    again.close()


def test_a_log_whose_database_is_gone_is_nothing_to_a_new_one(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.with_name("registry.db-wal").write_bytes(left_log(tmp_path / "other.db", 100))
    made = SqliteRegistry(path)
    assert made.names() == []
    made.close()


def test_a_log_of_the_same_database_is_taken_up_again(path: Path, tmp_path: Path) -> None:
    rows(path, 2)
    made = SqliteRegistry(path)
    made.put(manifest("late"), "")
    for name in ("registry.db", "registry.db-wal"):
        (tmp_path / name).write_bytes(path.with_name(name).read_bytes())
    made.close()
    second = SqliteRegistry(tmp_path / "registry.db")
    assert second.names() == ["late", "m0", "m1"]
    second.close()


def test_damage_inside_a_file_is_named_by_whatever_meets_it(path: Path) -> None:
    rows(path, 300)
    data = bytearray(path.read_bytes())
    data[2 * 4096 : -4096] = b"\xff" * (len(data) - 3 * 4096)
    path.write_bytes(data)
    damaged = SqliteRegistry(path)
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database .*move it away"):
        [damaged.get(f"m{number}") for number in range(300)]
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database"):
        damaged._db.execute("SELECT * FROM models ORDER BY raw").fetchall()
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database"):
        list(damaged._db.execute("SELECT * FROM models"))
    damaged.close()


def test_a_manifest_that_is_no_json_is_damage(path: Path, registry: SqliteRegistry) -> None:
    registry._db.execute("INSERT INTO models VALUES ('m', '{', '')")
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database \(the manifest of 'm' is not JSON"):
        registry.get("m")


def test_a_database_of_other_tables_is_refused_by_name(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE models (colour TEXT)")
    made = SqliteRegistry(path)
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database \(no such column"):
        made.names()
    made.close()


def test_a_file_that_another_process_holds_is_named_and_may_be_tried_again(
    path: Path, registry: SqliteRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCKED_S", 0.05)
    second = SqliteRegistry(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            InUseError, match=r"registry\.db is locked: another process has held it for 0\.05 s"
        ) as caught:
            second.put(manifest(), "")
        assert caught.value.retryable
    second.put(manifest(), "")
    second.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        registry.close()
        other.execute("INSERT INTO models VALUES ('a', '{}', '')")
        with pytest.raises(InUseError, match=r"registry\.db is locked"):
            SqliteRegistry(path)


def test_a_file_that_cannot_be_opened_is_named_with_the_reason(path: Path, tmp_path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"registry\.db cannot be opened for writing .*must be able to write it"):
        SqliteRegistry(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"x\.db cannot be made: .*choose another folder"):
        SqliteRegistry(tmp_path / "file" / "x.db")


def test_no_descriptor_left_is_not_the_files_fault(path: Path) -> None:
    rows(path, 1)
    with few_descriptors(left=0), pytest.raises(CapacityError, match="no descriptor left"):
        SqliteRegistry(path)


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


def _bomb(levels: int) -> str:
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
        (_bomb(7), "has more than 20000 values, aliases written out"),
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
