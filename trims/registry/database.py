"""Databases in sqlite files whose errors name the file, what happened to it and the remedy.

A damaged file shows at any statement, not only when it is opened, so the connection itself translates its errors. A
write-ahead log that belongs to another database (one was removed or replaced, and its log stayed) is found before the
first write: sqlite would apply it and damage a sound file.

On a full disk sqlite cannot even read: it needs files beside the database. A daemon must serve there all the same, so
a database that was made before is then read from a copy in memory, which takes no changes.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from trims.core.errors import CapacityError, ConfigError, InUseError, TrimsError
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.registry import generation

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)
#: Folder in which a copy of a database lies while it is read.
_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - a folder of this user's own is made there
#: Bytes of the file that sqlite maps beside a database with a write-ahead log.
_LEAST_ROOM = 32 << 10
#: Seconds that a statement waits for another process to let go of the file.
LOCKED_S = 10.0
#: Seconds between two tries of a statement that sqlite refuses at once.
_AGAIN_S = 0.01
#: Errors of sqlite that no statement of ours can cause: the file is their reason.
_OF_THE_FILE = (sqlite3.OperationalError, sqlite3.InternalError)


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """Return a connection that threads may share under a lock of their own; its errors are TrimsErrors or bugs.

    Args:
        path: Made if it is not there, with its folder.
        schema: A script that makes the tables.

    Raises:
        ConfigError: The file is no database, is damaged, lies beside a log of another one, or cannot be opened.
        InUseError: Another process holds it.
        CapacityError: The disk is full and the file was not there before, or no descriptor is left.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}: {path.parent}; choose another folder") from error
    had_log = _check_log(path)
    try:
        return _opened(path, schema, had_log=had_log)
    except CapacityError as error:
        full = isinstance(error.__cause__, sqlite3.Error) and _is_disk_full(error.__cause__, path)
        if not full or not path.exists() or not path.stat().st_size:
            raise
        made = _copy_in_memory(path, error)
    try:
        generation.check(made, path, had_log=had_log)
    except BaseException:
        made.close()
        raise
    return made


def is_frozen(connection: sqlite3.Connection) -> bool:
    """Return whether the connection is a copy in memory, which takes no changes."""
    return isinstance(connection, _Connection) and connection.frozen


def _opened(path: Path, schema: str, *, had_log: bool) -> sqlite3.Connection:
    connection = _connect(path, str(path))
    try:
        _keep_a_log(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        generation.check(connection, path, had_log=had_log)
        connection.executescript(f"{generation.SCHEMA};{schema}")
        connection.counted = connection.total_changes
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Set the write-ahead log.

    Where processes make one new file at the same moment, sqlite refuses all but one of them at once, without the wait
    that every other statement has.
    """
    deadline = time.monotonic() + LOCKED_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except InUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


def damaged(path: Path, what: object, remedy: str = "add the models again") -> ConfigError:
    """Return the error for a file whose content is not what it should be."""
    return ConfigError(
        f"{path} is not a usable database ({what}); move it away, together with {path.name}-wal, {path.name}-shm and "
        f"{generation.beside(path).name} where they are, and {remedy}"
    )


def _copy_in_memory(path: Path, why: CapacityError) -> _Connection:
    """Return a connection to a copy of the file and its log. Raises `why` if memory has no room either."""
    connection = _connect(path, ":memory:")
    try:
        with tempfile.TemporaryDirectory(prefix="trims-db-", dir=_MEMORY_FOLDER) as folder:
            for name in (path.name, f"{path.name}-wal"):
                if path.with_name(name).exists():
                    shutil.copy(path.with_name(name), folder)
            with closing(sqlite3.connect(os.path.join(folder, path.name))) as source:
                source.backup(connection)
        connection.execute("PRAGMA query_only = 1")
    except (OSError, sqlite3.Error) as error:
        connection.close()
        raise why from error
    connection.frozen = True
    log.error("%s; what it holds is served, and changes are refused until the daemon starts again with room", why)
    return connection


def _connect(path: Path, where: str) -> _Connection:
    try:
        found = sqlite3.connect(
            where, check_same_thread=False, isolation_level=None, timeout=LOCKED_S, factory=_Connection
        )
    except sqlite3.Error as error:
        raise explain(error, path) from error
    assert isinstance(found, _Connection)
    found.path = path
    return found


def _check_log(path: Path) -> bool:
    """Check that a log that was left belongs to this file, without writing to either. Return whether there is one."""
    log = path.with_name(f"{path.name}-wal")
    try:
        if not log.stat().st_size or not path.stat().st_size:
            return False  # sqlite removes the log of a file that is gone
    except OSError:
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOCKED_S)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except _OF_THE_FILE as error:
        raise explain(error, path) from error
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        reason = " ".join(found.split())
        raise ConfigError(
            f"{path} and {log.name} beside it do not make a usable database ({reason}): one may have been replaced "
            f"without the other; move {log.name} and {path.name}-shm away, and {path.name} too if that does not help"
        )
    return True


class _Connection(sqlite3.Connection):
    path: Path
    frozen = False
    #: Changes when the generation was raised last; None while it is not raised.
    counted: int | None = None

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """See `sqlite3.Connection`, whose own goes past every cursor class but its own."""
        found = super().cursor(_Cursor).execute(sql, parameters)
        if self.counted is not None and not self.in_transaction and self.total_changes != self.counted:
            self._count()
        return found

    def _count(self) -> None:
        """Raise the generation behind a change, which stays also where this fails."""
        self.counted = None
        try:
            generation.write_beside(self.path, generation.raise_number(self))
        except (TrimsError, sqlite3.Error) as error:
            log.debug("the generation of %s is not raised: %s", self.path, error)
        self.counted = self.total_changes

    def executescript(self, sql_script: str) -> Any:
        """See `execute`."""
        return super().cursor(_Cursor).executescript(sql_script)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """See `sqlite3.Cursor`."""
        return self._explained(super().execute, sql, parameters)

    def executescript(self, sql_script: str) -> Any:
        """See `sqlite3.Cursor`."""
        return self._explained(super().executescript, sql_script)

    def fetchone(self) -> Any:
        """See `sqlite3.Cursor`."""
        return self._explained(super().fetchone)

    def fetchall(self) -> list[Any]:
        """See `sqlite3.Cursor`."""
        found: list[Any] = self._explained(super().fetchall)
        return found

    def __next__(self) -> Any:
        return self._explained(super().__next__)

    def _explained(self, method: Any, *given: Any) -> Any:
        try:
            return method(*given)
        except sqlite3.DatabaseError as error:
            assert isinstance(self.connection, _Connection)
            explained = explain(error, self.connection.path, frozen=self.connection.frozen)
            self.close()  # the traceback holds this cursor, and an open one holds the file after the connection's end
            raise explained from error


def explain(
    error: sqlite3.Error, path: Path, *, frozen: bool = False, remedy: str = "add the models again"
) -> Exception:
    """Return the error that an error of sqlite means for an operator; the error itself if it is a bug of ours.

    Args:
        frozen: Whether it is a copy in memory, which takes no changes.
        remedy: What to do after a damaged file was moved away.
    """
    text = str(error)
    if frozen and "readonly" in text:
        return CapacityError(
            f"the disk under {path.parent} was full when the daemon started, so {path.name} takes no changes; free "
            "some, then start the daemon again"
        )
    if type(error) is not sqlite3.DatabaseError and not isinstance(error, _OF_THE_FILE):
        return error
    if "locked" in text:
        return InUseError(
            f"{path} is locked: another process has held it for {LOCKED_S:g} s; `fuser {path}` finds that process, "
            "end it or try again"
        )
    if _is_disk_full(error, path):
        return CapacityError(f"the disk under {path.parent} is full: {path.name} cannot be written; free some")
    if "unable to open" in text or "readonly" in text:
        return _cannot_open(path, text)
    return damaged(path, text, remedy)


def _is_disk_full(error: sqlite3.Error, path: Path) -> bool:
    """Return whether an error means a full disk; sqlite reports an I/O error for a file that does not fit beside it."""
    text = str(error)
    return "full" in text or ("I/O" in text and _has_no_room(path.parent))


def _has_no_room(folder: Path) -> bool:
    """Return whether sqlite's smallest file beside a database would not fit."""
    try:
        held = os.statvfs(folder)
    except OSError:
        return False
    return held.f_bavail * held.f_frsize < _LEAST_ROOM


def _cannot_open(path: Path, text: str) -> Exception:
    try:  # sqlite does not say why
        os.close(os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if lacks_descriptors(error):
            return explain_descriptors(error)
    return ConfigError(
        f"{path} cannot be opened for writing ({text}); this user must be able to write it and its folder"
    )
