"""A database file that cannot be used is named, left as it is, and reported with the remedy."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from registries import left_log, manifest, rows

from trims.core.errors import (
    CapacityError,
    ConfigError,
    InUseError,
)
from trims.registry import database
from trims.registry.database import is_frozen, open_database
from trims.registry.sqlite import SqliteRegistry
from trims.testing.descriptors import few_descriptors


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_named_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database"):
        SqliteRegistry(path)
    assert path.read_bytes() == content


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


def test_a_new_file_that_many_make_at_the_same_moment_is_made_for_all(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            start = threading.Barrier(8)

            def make(path: Path = tmp_path / f"{number}.db", start: threading.Barrier = start) -> None:
                start.wait()
                open_database(path, "CREATE TABLE IF NOT EXISTS models (name TEXT)").close()

            for each in [pool.submit(make) for _ in range(8)]:
                each.result()


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


SCHEMA = "CREATE TABLE IF NOT EXISTS t (x INTEGER) STRICT"


def test_a_bug_of_ours_is_not_taken_for_damage(path: Path) -> None:
    with closing(open_database(path, SCHEMA)) as connection:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO t VALUES ('no number')")
        with pytest.raises(sqlite3.ProgrammingError):
            connection.execute("INSERT INTO t VALUES (?)", ())
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.fixture
def full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sqlite find no room for the file beside a database from now on."""
    connect = database._connect

    def refuses(at: Path, where: str) -> database._Connection:
        if where == str(path):
            raise CapacityError(f"the disk under {at.parent} is full") from sqlite3.OperationalError("disk is full")
        return connect(at, where)

    monkeypatch.setattr(database, "_connect", refuses)


def test_on_a_full_disk_a_database_is_read_from_memory_and_takes_no_changes(
    path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_database(path, SCHEMA)) as connection:
        connection.execute("INSERT INTO t VALUES (7)")
        assert not is_frozen(connection)
    before = path.read_bytes()
    request.getfixturevalue("full_disk")
    with closing(open_database(path, SCHEMA)) as connection:
        assert is_frozen(connection)
        assert connection.execute("SELECT x FROM t").fetchall() == [(7,)]
        with pytest.raises(CapacityError, match=r"so registry\.db takes no changes; free some, then start the daemon"):
            connection.execute("INSERT INTO t VALUES (8)")
    assert path.read_bytes() == before
    assert "what it holds is served, and changes are refused" in caplog.text


@pytest.mark.usefixtures("full_disk")
def test_on_a_full_disk_a_database_that_was_never_there_is_not_served(path: Path) -> None:
    for content in (None, b""):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CapacityError, match="is full"):
            open_database(path, SCHEMA)


def test_a_damaged_file_is_told_with_all_that_must_be_moved() -> None:
    error = database.damaged(Path("/state/catalog.db"), "why")
    assert str(error).startswith("/state/catalog.db is not a usable database (why); move it away, together with ")
    assert "catalog.db-wal, catalog.db-shm and catalog.db-generation where they are" in str(error)
