"""The registry: one manifest a name, kept over restarts, and a damaged file that is named and left alone."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from registries import manifest

from trims.core.errors import (
    ConfigError,
    ManifestError,
    ModelExistsError,
    ModelNotFoundError,
)
from trims.registry.base import Registry
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_manifest_that_is_no_json_is_damage(path: Path, registry: SqliteRegistry) -> None:
    registry._db.execute("INSERT INTO models VALUES ('m', '{', '')")
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database \(the manifest of 'm' is not JSON"):
        registry.get("m")


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


def version_of_tables(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


def test_a_file_of_an_older_trims_is_read_and_one_that_it_can_read_is_left(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE models (name TEXT PRIMARY KEY, raw TEXT NOT NULL, origin TEXT NOT NULL) STRICT")
        database.execute("PRAGMA user_version = 1")
        database.execute("INSERT INTO models VALUES ('m', ?, '/a')", (json.dumps(manifest(version=7)),))
        database.commit()
    registry = SqliteRegistry(path)
    assert registry.versions("m").registered == ("7",)
    registry.put(manifest("other"), "")
    assert version_of_tables(path) == 1
    registry.close()


def test_a_file_with_versions_or_labels_is_one_that_an_older_trims_refuses(
    registry: SqliteRegistry, path: Path
) -> None:
    registry.put(manifest(version="1"), "")
    registry.put(manifest(version="2"), "")
    assert version_of_tables(path) == 2
    registry.remove_version("m@2")
    assert version_of_tables(path) == 1, "an older trims may read it again"
    registry.switch("m", "stable", "1")
    assert version_of_tables(path) == 2
    registry.remove("m")
    assert version_of_tables(path) == 1


def test_a_file_of_a_newer_trims_is_refused(path: Path) -> None:
    SqliteRegistry(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 3")
    with pytest.raises(ConfigError, match=r"version 3, this reads 2\); install it"):
        SqliteRegistry(path)


def test_a_version_whose_manifest_is_damaged_hides_no_other(registry: SqliteRegistry, path: Path) -> None:
    registry.put(manifest(version="1"), "")
    registry.put(manifest(version="2"), "")
    registry.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE models SET raw = '{'")
        database.commit()
    again = SqliteRegistry(path)
    assert again.get("m@2").version == "2"
    with pytest.raises(ModelNotFoundError, match="leads to the version '1', which is not registered any more"):
        again.get("m")
    again.switch("m", "", "2")
    assert again.get("m").version == "2"
    again.close()
