"""A database without its log is noticed, and one that rests needs none."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from registries import manifest, rows

from trims.core.errors import ConfigError
from trims.registry import generation
from trims.registry.database import open_database
from trims.registry.generation import Checkpoints, beside, checkpoint, read_beside, write_beside
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def made(path: Path) -> Iterator[SqliteRegistry]:
    """A registry with two models that were checkpointed, and one that is in the log only."""
    rows(path, 2)
    registry = SqliteRegistry(path)
    registry.put(manifest("late"), "")
    yield registry
    registry.close()


def copied(path: Path, folder: Path, *without: str) -> Path:
    """Copy a state folder as it is now, without some of its files."""
    shutil.copytree(path.parent, folder, ignore=lambda _, names: {path.name + each for each in without} & set(names))
    return folder / path.name


def names_in(path: Path) -> list[str]:
    with closing(SqliteRegistry(path)) as registry:
        return registry.names()


@pytest.mark.parametrize("without", [("-wal",), ("-wal", "-shm")])
def test_a_copy_without_its_log_is_refused_with_what_it_lacks(
    made: SqliteRegistry, path: Path, tmp_path: Path, without: tuple[str, ...]
) -> None:
    lacking = copied(path, tmp_path / "copy", *without)
    before = lacking.read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"lacks its last change: .* registry\.db-wal, which is not there"):
            SqliteRegistry(lacking)
    assert lacking.read_bytes() == before
    shutil.copy(path.with_name("registry.db-wal"), lacking.parent)
    assert names_in(lacking) == ["late", "m0", "m1"]
    del made


def test_a_database_without_log_and_number_has_the_last_checkpoint(
    made: SqliteRegistry, path: Path, tmp_path: Path
) -> None:
    lacking = copied(path, tmp_path / "copy", "-wal", "-shm")
    beside(lacking).unlink()
    assert names_in(lacking) == ["m0", "m1"]
    assert names_in(lacking) == ["m0", "m1"]
    del made


# fault (daemon): a loss of power cuts a database's log -> a warning with the number of lost changes
def test_a_log_that_was_cut_by_a_loss_of_power_is_reported_and_the_rest_counts(
    made: SqliteRegistry, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = copied(path, tmp_path / "copy", "-shm")
    log = cut.with_name("registry.db-wal")
    log.write_bytes(log.read_bytes()[:100])
    assert names_in(cut) == ["m0", "m1"]
    assert "lacks its last change, as after a loss of power" in caplog.text
    caplog.clear()
    assert names_in(cut) == ["m0", "m1"]
    assert caplog.text == ""
    del made


def test_a_database_that_rests_needs_no_log(made: SqliteRegistry, path: Path, tmp_path: Path) -> None:
    checkpoints = Checkpoints([path, path.with_name("none.db")])
    checkpoints.look()
    assert names_in(copied(path, tmp_path / "first", "-wal", "-shm")) == ["late", "m0", "m1"]
    made.remove("m0")
    checkpoints.look()
    assert names_in(copied(path, tmp_path / "second", "-wal", "-shm")) == ["late", "m1"]
    assert not path.with_name("none.db").exists()


def test_a_database_without_news_is_not_opened_for_a_checkpoint(
    made: SqliteRegistry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    monkeypatch.setattr(generation, "checkpoint", lambda each: opened.append(each) or checkpoint(each))
    checkpoints = Checkpoints([path])
    for _ in range(3):
        checkpoints.look()
    assert opened == [path]
    made.remove("m0")
    checkpoints.look()
    assert opened == [path, path]


def test_a_reader_of_before_holds_up_the_checkpoint_until_it_ends(made: SqliteRegistry, path: Path) -> None:
    checkpoints = Checkpoints([path])
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM models").fetchall()
        made.remove("m0")
        checkpoints.look()
        assert checkpoints._done[path] == -1
        reader.execute("ROLLBACK")
    checkpoints.look()
    assert checkpoints._done[path] == read_beside(path)


def test_each_change_raises_the_number_in_the_database_and_beside_it(path: Path) -> None:
    with closing(open_database(path, "CREATE TABLE t (x INTEGER)")) as db:
        before = read_beside(path)
        db.execute("INSERT INTO t VALUES (1)")
        db.execute("BEGIN")
        db.execute("INSERT INTO t VALUES (2)")
        db.execute("INSERT INTO t VALUES (3)")
        assert read_beside(path) == before + 1
        db.execute("COMMIT")
        db.execute("SELECT * FROM t").fetchall()
        assert read_beside(path) == generation.number_in(db) == before + 2


def test_a_database_of_an_older_trims_is_taken_and_counted_from_now_on(path: Path) -> None:
    rows(path, 1)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE generation")
    beside(path).unlink()
    with closing(SqliteRegistry(path)) as registry:
        registry.put(manifest("new"), "")
    assert read_beside(path) == 1
    assert names_in(path) == ["m0", "new"]


def test_a_number_that_cannot_be_written_or_read_stops_nothing(path: Path) -> None:
    path.parent.mkdir()
    beside(path).mkdir()
    assert read_beside(path) == 0
    write_beside(path, 5)
    rows(path, 1)
    assert names_in(path) == ["m0"]
