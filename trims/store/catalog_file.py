"""File of the catalog: its tables, and what is done with one that is damaged or of another version."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError
from trims.registry.database import is_frozen
from trims.registry.generation import beside
from trims.registry.sqlite import connect, version_of

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

log = logging.getLogger(__name__)
#: Raised when the tables change. Version 2 is brought up to date; any other is emptied and found out again.
_VERSION = 3
_TABLES = ("digests", "images", "names", "pins", "workspaces", "seals", "formats", "signatures")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS digests (
    path TEXT PRIMARY KEY, identity TEXT NOT NULL, blake3 TEXT NOT NULL, sha256 TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS images (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, recipe TEXT NOT NULL,
    nbytes INTEGER NOT NULL, cost_s REAL NOT NULL, made_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, key TEXT NOT NULL, manifest TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS workspaces (key TEXT PRIMARY KEY, nbytes INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS pins (
    name TEXT NOT NULL, place TEXT NOT NULL, pinned INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (name, place)
) STRICT;
CREATE TABLE IF NOT EXISTS seals (label TEXT PRIMARY KEY, identity TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS formats (name TEXT PRIMARY KEY, format TEXT NOT NULL, manifest TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS signatures (key TEXT PRIMARY KEY, signature TEXT NOT NULL) STRICT;
"""
_FROM_2_TO_3 = {
    "pins": "ALTER TABLE pins ADD COLUMN pinned INTEGER NOT NULL DEFAULT 1",
    "working": "ALTER TABLE working RENAME TO workspaces",
}


def open_catalog(path: Path) -> sqlite3.Connection:
    """Return a connection to the file with all tables; one that is damaged is moved aside. Raises ConfigError."""
    if beside(path).exists() and not path.exists():
        log.warning("%s is gone: pins must be set again, the rest is found out again", path)
        beside(path).unlink()
    try:
        return _prepared(path)
    except ConfigError as error:
        if "usable database" not in str(error):
            raise  # it cannot be opened or written: that is no reason to give it up
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        log.error("%s; it is moved to %s, pins must be set again, the rest is found out again", error, aside)  # noqa: TRY400
        for suffix in ("", "-wal", "-shm", "-generation"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        return _prepared(path)


def _prepared(path: Path) -> sqlite3.Connection:
    db = connect(path, "")
    try:
        version = version_of(db)
        if version == _VERSION and (is_frozen(db) or all(has_table(db, table) for table in _TABLES)):
            return db  # nothing is written: on a full disk a daemon must start, too
        db.execute("BEGIN")  # a daemon that dies here leaves the version before, whole
        for table, change in _FROM_2_TO_3.items() if version == 2 else ():
            if has_table(db, table):
                db.execute(change)
        if version not in (2, _VERSION):
            _empty(db, path)
        db.execute(f"PRAGMA user_version = {_VERSION}")
        db.execute("COMMIT")
        db.executescript(_SCHEMA)
        db.execute("CREATE INDEX IF NOT EXISTS names_by_key ON names (key)")
    except BaseException:
        db.close()
        raise
    return db


def _empty(db: sqlite3.Connection, path: Path) -> None:
    for table in _TABLES:
        if has_table(db, table):
            log.warning("%s: the table %s is of another version; it is emptied and found out again", path, table)
            db.execute(f"DROP TABLE {table}")


def has_table(db: sqlite3.Connection, table: str) -> bool:
    """Return whether a table is there."""
    return bool(db.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0])
