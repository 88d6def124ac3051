"""The default registry: one sqlite file on this machine."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError
from trims.manifests.manifest import Manifest, parse_manifest
from trims.registry.base import json_of, taken_name, unknown_model
from trims.registry.database import damaged, open_database

if TYPE_CHECKING:
    import sqlite3

    from trims.registry.base import RegistrySettings

_SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    name TEXT PRIMARY KEY,
    raw TEXT NOT NULL,
    origin TEXT NOT NULL
) STRICT
"""


#: Version of the tables, raised when they change in a way that old files do not fit.
_VERSION = 1


def connect(path: Path, schema: str) -> sqlite3.Connection:
    """Open a database that several threads share under a lock of their own. See `open_database`."""
    return open_database(path, schema)


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the tables in a database; 0 for a new one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def open_sqlite(settings: RegistrySettings) -> SqliteRegistry:
    """Open the registry `sqlite`: a file in the state folder, or `sqlite:/path/file.db`, which daemons may share."""
    if not settings.argument:
        return SqliteRegistry(settings.state_dir / "registry.db")
    path = Path(settings.argument)
    if not path.is_absolute():
        raise ConfigError(f"the registry sqlite:{path} needs an absolute path: daemon and commands start anywhere")
    return SqliteRegistry(path, shared=True)


class SqliteRegistry:
    """See `Registry`.

    Args:
        path: The file; made if it is not there. Raises ConfigError if a newer trims wrote it, else as `open_database`.
        shared: Whether other daemons may write it.

    What is wrong with the file may show later: every method may raise what `open_database` does.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self._path = path
        self._shared = shared
        self._lock = threading.Lock()
        self._db = connect(path, _SCHEMA)
        try:
            self._check_version()
        except BaseException:
            self._db.close()
            raise

    def _check_version(self) -> None:
        found = version_of(self._db)
        if found not in (0, _VERSION):
            raise ConfigError(
                f"{self._path} was written by another trims (version {found}, this reads {_VERSION}); install it"
            )
        if found != _VERSION:
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    @property
    def changes_outside(self) -> bool:
        """See `Registry.changes_outside`."""
        return self._shared

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        """See `Registry.put`."""
        manifest = parse_manifest(raw, origin)
        text = json_of(raw, manifest.name)
        row = (manifest.name, text, origin)
        with self._lock:
            if replace:
                self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", row)
            elif not self._inserted(row):
                raise taken_name(manifest.name)
        return manifest

    def _inserted(self, row: tuple[str, str, str]) -> bool:
        """Insert a row, and return whether it is there now.

        One statement decides: another process may write between two.
        """
        self._db.execute("INSERT INTO models VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING", row)
        same = "SELECT 1 FROM models WHERE name = ? AND raw = ? AND origin = ?"
        return self._db.execute(same, row).fetchone() is not None

    def get(self, name: str) -> Manifest:
        """See `Registry.get`."""
        return parse_manifest(*self._row(name))

    def raw(self, name: str) -> dict[str, Any]:
        """See `Registry.raw`."""
        return self._row(name)[0]

    def _row(self, name: str) -> tuple[dict[str, Any], str]:
        with self._lock:
            row = self._db.execute("SELECT raw, origin FROM models WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise unknown_model(name, self.names())
        try:
            return json.loads(row[0]), row[1]
        except (ValueError, RecursionError) as error:
            raise damaged(self._path, f"the manifest of {name!r} is not JSON: {error}") from error

    def names(self) -> list[str]:
        """See `Registry.names`."""
        with self._lock:
            return [row[0] for row in self._db.execute("SELECT name FROM models ORDER BY name")]

    def remove(self, name: str) -> None:
        """See `Registry.remove`."""
        with self._lock:
            gone = self._db.execute("DELETE FROM models WHERE name = ?", (name,)).rowcount
        if not gone:
            raise unknown_model(name, self.names())

    def close(self) -> None:
        """See `Registry.close`."""
        with self._lock:
            self._db.close()
