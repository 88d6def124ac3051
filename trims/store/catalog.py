"""What the store remembers between lives: digests of files it has read, images it has made, pins.

Everything here can be found out again; losing the file costs time, never weights. A file's digest counts for as long as
device, inode, length and both times are the ones it was read with.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import CapacityError
from trims.registry.sqlite import connect, version_of, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = logging.getLogger(__name__)
#: Raised when the tables change; a catalog of another version is emptied and found out again.
_VERSION = 2
_TABLES = ("digests", "images", "names", "pins", "working")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS digests (
    path TEXT PRIMARY KEY, identity TEXT NOT NULL, blake3 TEXT NOT NULL, sha256 TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS images (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, recipe TEXT NOT NULL,
    nbytes INTEGER NOT NULL, cost_s REAL NOT NULL, made_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, key TEXT NOT NULL, manifest TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS working (key TEXT PRIMARY KEY, nbytes INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS pins (name TEXT NOT NULL, place TEXT NOT NULL, PRIMARY KEY (name, place)) STRICT;
"""


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image that was made here once."""

    key: str
    name: str
    recipe: Mapping[str, Any]
    nbytes: int
    cost_s: float


def identity_of(path: Path | str) -> str:
    """What changes whenever somebody touches a file. Raises OSError."""
    status = os.stat(path)
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


class Catalog:
    """The sqlite file behind a store. Safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._db = connect(path, "")
        if version_of(self._db) != _VERSION:
            self._empty(path)
        self._db.executescript(_SCHEMA)

    def _empty(self, path: Path) -> None:
        for table in _TABLES:
            gone = self._db.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
            if gone:
                log.warning("%s: the table %s is of another version; it is emptied and found out again", path, table)
                self._db.execute(f"DROP TABLE {table}")
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def digests(self, path: str, identity: str) -> tuple[str, str | None] | None:
        """blake3 and, where known, sha256 of a file that has not changed since."""
        with self._lock:
            row = self._db.execute(
                "SELECT blake3, sha256 FROM digests WHERE path = ? AND identity = ?", (path, identity)
            ).fetchone()
        return (row[0], row[1]) if row else None

    def remember_digests(self, path: str, identity: str, blake3: str, sha256: str | None) -> None:
        """Keep what reading the file has told."""
        self._remember("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)", (path, identity, blake3, sha256))

    def image(self, key: str) -> ImageRecord | None:
        """The record of an image, or None if it was never made here."""
        with self._lock:
            row = self._db.execute(
                "SELECT key, name, recipe, nbytes, cost_s FROM images WHERE key = ?", (key,)
            ).fetchone()
        return ImageRecord(row[0], row[1], json.loads(row[2]), row[3], row[4]) if row else None

    def remember_image(self, record: ImageRecord) -> None:
        """Keep that the image was made."""
        made = (record.key, record.name, json.dumps(record.recipe), record.nbytes, record.cost_s, time.time())
        self._remember("INSERT OR REPLACE INTO images VALUES (?, ?, ?, ?, ?, ?)", made)

    def working(self) -> dict[str, int]:
        """Bytes of a device that readers of each image were seen to need beside it."""
        with self._lock:
            return dict(self._db.execute("SELECT key, nbytes FROM working"))

    def remember_working(self, key: str, nbytes: int) -> None:
        """Keep what an image's readers need."""
        self._remember("INSERT OR REPLACE INTO working VALUES (?, ?)", (key, nbytes))

    def key_of(self, name: str) -> str | None:
        """The key a name stood for last time."""
        with self._lock:
            row = self._db.execute("SELECT key FROM names WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def key_under(self, name: str, manifest: str) -> str | None:
        """The key a name stood for last time, if that was under this manifest."""
        with self._lock:
            row = self._db.execute("SELECT key FROM names WHERE name = ? AND manifest = ?", (name, manifest)).fetchone()
        return row[0] if row else None

    def remember_key(self, name: str, key: str, manifest: str) -> None:
        """Keep what a name stands for under this manifest."""
        self._remember("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (name, key, manifest))

    def names_of(self, key: str) -> list[str]:
        """All names that stand for this image."""
        with self._lock:
            return [row[0] for row in self._db.execute("SELECT name FROM names WHERE key = ? ORDER BY name", (key,))]

    def forget(self, name: str) -> None:
        """The name is not registered any more."""
        self._write("DELETE FROM names WHERE name = ?", (name,))
        self._write("DELETE FROM pins WHERE name = ?", (name,))

    def pins(self) -> list[tuple[str, str]]:
        """All pins as (name, place)."""
        with self._lock:
            return list(self._db.execute("SELECT name, place FROM pins ORDER BY name, place"))

    def pin(self, name: str, place: str, *, pinned: bool) -> None:
        """Keep or drop a pin. Raises CapacityError if the disk is full: a pin must not be lost in silence."""
        if pinned:
            self._write("INSERT OR REPLACE INTO pins VALUES (?, ?)", (name, place))
        else:
            self._write("DELETE FROM pins WHERE name = ? AND place = ?", (name, place))

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        with self._lock:
            write(self._db, self._path, statement, values)

    def _remember(self, statement: str, values: tuple[object, ...]) -> None:
        """What can be found out again is not worth an error: a full disk must not end an open."""
        try:
            self._write(statement, values)
        except (CapacityError, sqlite3.OperationalError) as error:
            log.warning("not remembered: %s", error)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._db.close()
