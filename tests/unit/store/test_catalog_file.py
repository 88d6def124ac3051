"""File of the catalog: tables of this version, whatever was there before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.store.catalog_file import has_table, open_catalog

if TYPE_CHECKING:
    from pathlib import Path

TABLES = ("digests", "images", "names", "pins", "workspaces", "seals", "formats", "signatures")


def test_a_new_file_has_all_tables_and_an_opened_one_is_left_alone(folder: Path) -> None:
    for rows in (0, 1):
        db = open_catalog(folder / "catalog.db")
        assert all(has_table(db, table) for table in TABLES)
        assert not has_table(db, "others")
        assert db.execute("SELECT count(*) FROM pins").fetchone()[0] == rows
        db.execute("INSERT OR REPLACE INTO pins VALUES ('m', 'cpu', 1)")
        db.close()


@pytest.mark.parametrize(("version", "kept"), [(1, 0), (2, 1), (3, 1), (4, 0)])
def test_a_file_of_the_version_before_is_kept_and_others_are_emptied(folder: Path, version: int, kept: int) -> None:
    db = open_catalog(folder / "catalog.db")
    db.execute("INSERT INTO names VALUES ('m', 'key', '{}')")
    if version == 2:  # which had these tables so
        db.execute("ALTER TABLE pins DROP COLUMN pinned")
        db.execute("ALTER TABLE workspaces RENAME TO working")
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    db = open_catalog(folder / "catalog.db")
    assert db.execute("SELECT count(*) FROM names").fetchone()[0] == kept
    assert db.execute("PRAGMA user_version").fetchone()[0] == 3
    assert all(has_table(db, table) for table in TABLES)
    db.close()


def test_a_damaged_file_is_moved_aside(folder: Path) -> None:
    (folder / "catalog.db").write_bytes(b"no database at all" * 1000)
    open_catalog(folder / "catalog.db").close()
    (aside,) = folder.glob("catalog.db.damaged-*")
    assert aside.read_bytes().startswith(b"no database")
