"""The default registry: one sqlite file on this machine."""

from __future__ import annotations

import difflib
import json
import threading
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError, ManifestError, ModelExistsError, ModelNotFoundError
from trims.core.manifest import Manifest, parse_manifest
from trims.registry.database import damaged, open_database

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    name TEXT PRIMARY KEY,
    raw TEXT NOT NULL,
    origin TEXT NOT NULL
) STRICT
"""


#: Raised when the tables change in a way that old files do not fit.
_VERSION = 1


def connect(path: Path, schema: str) -> sqlite3.Connection:
    """Open a database that several threads share under a lock of their own. See `open_database`."""
    return open_database(path, schema)


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the tables in a database; 0 for a new one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


class SqliteRegistry:
    """See `Registry`.

    Args:
        path: The file; made if it is not there. Raises ConfigError if a newer trims wrote it, else as `open_database`.

    What is wrong with the file may show later: every method may raise what `open_database` does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
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

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        """See `Registry.put`."""
        manifest = parse_manifest(raw, origin)
        try:
            text = json.dumps(raw, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ManifestError(f"{manifest.name}: holds a value JSON cannot carry ({error}); quote it") from error
        with self._lock:
            row = self._db.execute("SELECT raw, origin FROM models WHERE name = ?", (manifest.name,)).fetchone()
            if row is not None and row != (text, origin) and not replace:
                raise ModelExistsError(
                    f"{manifest.name!r} is registered with another manifest; remove it first, or replace it"
                )
            self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", (manifest.name, text, origin))
        return manifest

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
            raise self._unknown(name)
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
            raise self._unknown(name)

    def close(self) -> None:
        """See `Registry.close`."""
        with self._lock:
            self._db.close()

    def _unknown(self, name: str) -> ModelNotFoundError:
        near = difflib.get_close_matches(name, self.names(), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`trims list` shows what is; `trims add` registers one"
        return ModelNotFoundError(f"no model {name!r} is registered; {hint}")
