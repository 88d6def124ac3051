"""Generation of a database: a number that each change raises, kept in the database and in a file beside it.

A change lies in the write-ahead log until a checkpoint copies it into the database. A database that is copied or
restored without its log has the state of the last checkpoint, which sqlite takes for all there is. The number
beside the database shows it. The database is checkpointed while it rests, so little is ever in the log alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
SCHEMA = "CREATE TABLE IF NOT EXISTS generation (number INTEGER NOT NULL) STRICT"
_SUFFIX = "-generation"
#: Letters of the number in its file: each write has the same length, so that none is ever half there.
_LETTERS = 20


def beside(path: Path) -> Path:
    """Return the file that has the number of a database."""
    return path.with_name(path.name + _SUFFIX)


def read_beside(path: Path) -> int:
    """Return the number beside a database; 0 if there is none."""
    try:
        return int(beside(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def write_beside(path: Path, number: int) -> None:
    """Write the number beside a database. Where that fails, a log that gets lost later is not noticed."""
    try:
        file = os.open(beside(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, f"{number:0{_LETTERS}d}\n".encode(), 0)
        finally:
            os.close(file)
    except OSError as error:
        log.debug("%s is not written: %s", beside(path), error)


def number_in(connection: sqlite3.Connection) -> int:
    """Return the number in a database; 0 in one that an older trims made and this one could not change."""
    if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'generation'").fetchone()[0]:
        return 0
    found = connection.execute("SELECT max(number) FROM generation").fetchone()[0]
    return int(found or 0)


def raise_number(connection: sqlite3.Connection) -> int:
    """Count a change, in a transaction behind its own: if this one is there, so is the change. Return the number."""
    changed = connection.execute("UPDATE generation SET number = number + 1")
    if not changed.rowcount:
        connection.execute("INSERT INTO generation VALUES (1)")
    return number_in(connection)


def check(connection: sqlite3.Connection, path: Path, *, had_log: bool) -> None:
    """Check that a database has all changes that were made to it.

    Args:
        had_log: Whether a log lay beside it before it was opened. Then what lacks was lost with the machine's power,
            which nothing can bring back.

    Raises ConfigError if its log is gone.
    """
    known, found = read_beside(path), number_in(connection)
    lacking = known - found
    if lacking <= 0:
        return
    changes = "its last change" if lacking == 1 else f"its last {lacking} changes"
    if had_log:
        log.warning("%s lacks %s, as after a loss of power; what is left counts", path, changes)
        write_beside(path, found)
        return
    raise ConfigError(
        f"{path} lacks {changes}: they were in {path.name}-wal, which is not there. Copy that file from where the "
        "folder was copied from, or put a backup here (`trims doctor --backup DIR` makes one); or go on without them: "
        f"rm {beside(path)}"
    )


class Checkpoints:
    """Copies the logs of databases that others write into the databases, for as long as there is something new."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._done = dict.fromkeys(paths, -1)

    def look(self) -> None:
        """Copy what is new. Holds up no reader or writer; a database that is busy has its turn at the next look."""
        for path, done in self._done.items():
            now = read_beside(path)
            if now != done and checkpoint(path):
                self._done[path] = now


def checkpoint(path: Path) -> bool:
    """Copy the log of a database into it, as far as no reader needs the parts before. Return whether that was all."""
    with (
        contextlib.suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as db,
    ):
        busy, in_log, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return not busy and in_log == copied
    return False
