"""The default registry: one sqlite file on this machine."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError, ManifestError
from trims.manifests.manifest import Manifest, parse_manifest, text_of_version
from trims.manifests.references import split_reference
from trims.registry.base import json_of, taken_name, unknown_model
from trims.registry.database import damaged, open_database
from trims.registry.versions import PLAIN, Alias, Entry, Versions

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping

    from trims.registry.base import RegistrySettings

#: `models` has one version of each model, the first; an older trims knows this table only. Others lie in `versions`.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    name TEXT PRIMARY KEY,
    raw TEXT NOT NULL,
    origin TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS versions (
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    raw TEXT NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (name, version)
) STRICT;
CREATE TABLE IF NOT EXISTS aliases (
    name TEXT NOT NULL,
    label TEXT NOT NULL,
    version TEXT NOT NULL,
    previous TEXT NOT NULL,
    PRIMARY KEY (name, label)
) STRICT
"""

#: Version of the tables, raised when they change in a way that old files do not fit.
_VERSION = 1
#: Version of a file with several versions of a model, or labels: an older trims would serve, replace and remove the
#: first version under the plain name, whatever that leads to. It refuses the file instead.
_WITH_VERSIONS = 2
_NO_VERSION = "0.0.0"
#: Names before and behind an unknown one that are compared with it, for the hint in an error.
_MOST_NEAR = 10
_TABLES = ("models", "versions", "aliases")


def connect(path: Path, schema: str) -> sqlite3.Connection:
    """Open a database that several threads share under a lock of their own. See `open_database`."""
    return open_database(path, schema)


def _count_of_tables(connection: sqlite3.Connection) -> int:
    known = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN (?, ?, ?)"
    return int(connection.execute(known, _TABLES).fetchone()[0])


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the tables in a database; 0 for a new one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def open_sqlite(settings: RegistrySettings) -> SqliteRegistry:
    """Open the registry `sqlite`: a file in the state folder, or `sqlite:/path/file.db`, which daemons may share."""
    return SqliteRegistry(file_of(settings), shared=bool(settings.argument))


def file_of(settings: RegistrySettings) -> Path:
    """Return the file of the registry `sqlite`. Raises ConfigError for a path that is not absolute."""
    if not settings.argument:
        return settings.state_dir / "registry.db"
    path = Path(settings.argument)
    if not path.is_absolute():
        raise ConfigError(f"the registry sqlite:{path} needs an absolute path: daemon and commands start anywhere")
    return path


@dataclass(frozen=True, slots=True)
class _Model:
    """A model as it is stored: its versions, and of each the manifest's text and origin."""

    versions: Versions
    content: Mapping[str, tuple[str, str]]


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
        #: Presence of all tables: a file of an older trims on a full disk has the first only, and takes no changes.
        self._is_whole = _count_of_tables(self._db) == len(_TABLES)
        try:
            self._check_version()
        except BaseException:
            self._db.close()
            raise

    def _check_version(self) -> None:
        found = version_of(self._db)
        if found not in (0, _VERSION, _WITH_VERSIONS):
            raise ConfigError(
                f"{self._path} was written by another trims (version {found}, this reads {_WITH_VERSIONS}); install it"
            )
        if not found:
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    @property
    def changes_outside(self) -> bool:
        """See `Registry.changes_outside`."""
        return self._shared

    # -- changes ---------------------------------------------------------------------------------------------------

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        """See `Registry.put`."""
        manifest = parse_manifest(raw, origin)
        text = json_of(raw, manifest.name)
        with self._transaction():
            model = self._stored(manifest.name)
            before = model.content.get(manifest.version)
            if before == (text, origin):
                return manifest
            if before is not None and not replace:
                raise taken_name(model.versions.row_of(manifest.version))
            self._write(_with(model, manifest, (text, origin), replace=replace))
        return manifest

    def switch(self, name: str, label: str, version: str) -> Versions:
        """See `Registry.switch`."""
        with self._transaction():
            model = self._known(name)
            versions = model.versions
            now = versions.switched(label, version) if version else versions.switched_back(label)
            self._write(replace(model, versions=now))
        return now

    def remove_label(self, name: str, label: str) -> Versions:
        """See `Registry.remove_label`."""
        with self._transaction():
            model = self._known(name)
            now = model.versions.without_label(label)
            self._write(replace(model, versions=now))
        return now

    def remove(self, reference: str) -> None:
        """See `Registry.remove`."""
        self.remove_version(reference)

    def remove_version(self, reference: str, *, every: bool = False) -> None:
        """See `Registry.remove_version`."""
        name, text = split_reference(reference)
        with self._transaction():
            model = self._known(name)
            self._write(replace(model, versions=model.versions.without(text, every=every)))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Hold the file alone: what was read is still so when the changes are written, all of them or none."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _write(self, model: _Model) -> None:
        """Write all rows of a model. Called in a transaction."""
        name, versions = model.versions.name, model.versions
        for table in _TABLES:
            self._db.execute(f"DELETE FROM {table} WHERE name = ?", (name,))  # noqa: S608 - one of ours
        for number, version in enumerate(versions.registered):
            content = model.content[version]
            if number == 0:
                self._db.execute("INSERT INTO models VALUES (?, ?, ?)", (name, *content))
            else:
                self._db.execute("INSERT INTO versions VALUES (?, ?, ?, ?)", (name, version, *content))
        kept = {} if not versions.registered or _is_plain(versions) else versions.aliases
        for label, alias in kept.items():
            self._db.execute("INSERT INTO aliases VALUES (?, ?, ?, ?)", (name, label, alias.version, alias.previous))
        others = self._db.execute("SELECT EXISTS (SELECT 1 FROM versions) OR EXISTS (SELECT 1 FROM aliases)").fetchone()
        self._db.execute(f"PRAGMA user_version = {_WITH_VERSIONS if others[0] else _VERSION}")

    # -- questions -------------------------------------------------------------------------------------------------

    def get(self, reference: str) -> Manifest:
        """See `Registry.get`."""
        return self.find(reference).manifest

    def raw(self, reference: str) -> dict[str, Any]:
        """See `Registry.raw`."""
        return self._content(reference)[1][0]

    def find(self, reference: str) -> Entry:
        """See `Registry.find`."""
        row, content = self._content(reference)
        return Entry(row, parse_manifest(*content))

    def versions(self, name: str) -> Versions:
        """See `Registry.versions`."""
        with self._lock:
            return self._known(name).versions

    def _content(self, reference: str) -> tuple[str, tuple[dict[str, Any], str]]:
        """Return the row that a reference leads to, its manifest and origin."""
        name, text = split_reference(reference)
        with self._lock:
            model = self._known(name)
        version = model.versions.version_of(text)
        raw, origin = model.content[version]
        try:
            return model.versions.row_of(version), (json.loads(raw), origin)
        except (ValueError, RecursionError) as error:
            raise damaged(self._path, f"the manifest of {reference!r} is not JSON: {error}") from error

    def names(self) -> list[str]:
        """See `Registry.names`."""
        with self._lock:
            return self._names()

    def rows(self) -> list[str]:
        """See `Registry.rows`."""
        with self._lock:
            several = {row[0] for row in self._db.execute("SELECT name FROM versions")} if self._is_whole else set()
            return [
                row
                for name in self._names()
                for row in (self._known(name).versions.rows() if name in several else [name])
            ]

    def _names(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT name FROM models ORDER BY name")]

    def _near(self, name: str) -> list[str]:
        """Return the names around one in their order: of thousands, few are worth a comparison."""
        found = []
        for order in (">= ? ORDER BY name", "< ? ORDER BY name DESC"):
            query = f"SELECT name FROM models WHERE name {order} LIMIT {_MOST_NEAR}"  # noqa: S608 - of ours
            found += [row[0] for row in self._db.execute(query, (name,))]
        return found

    def _known(self, name: str) -> _Model:
        """Return what is stored of a model. Called under the lock. Raises ModelNotFoundError."""
        model = self._stored(name)
        if not model.content:
            raise unknown_model(name, self._near(name))
        return model

    def _stored(self, name: str) -> _Model:
        content: dict[str, tuple[str, str]] = {}
        first = self._db.execute("SELECT raw, origin FROM models WHERE name = ?", (name,)).fetchone()
        if first is not None:
            content[_version_in(first[0])] = first
        aliases = {}
        if self._is_whole:
            others = "SELECT version, raw, origin FROM versions WHERE name = ? ORDER BY rowid"
            for version, *text in self._db.execute(others, (name,)):
                content.setdefault(version, tuple(text))
            found = self._db.execute("SELECT label, version, previous FROM aliases WHERE name = ?", (name,))
            aliases = {label: Alias(version, previous) for label, version, previous in found}
        registered = tuple(content)
        implied = {PLAIN: Alias(registered[0])} if registered else {}
        return _Model(Versions(name, registered, {**implied, **aliases}), content)

    def close(self) -> None:
        """See `Registry.close`."""
        with self._lock:
            self._db.close()


def _is_plain(versions: Versions) -> bool:
    """Return whether a model has one version and no label, as one of an older trims."""
    return len(versions.registered) == 1 and set(versions.aliases) <= {PLAIN}


def _with(model: _Model, manifest: Manifest, content: tuple[str, str], *, replace: bool) -> _Model:
    """Return a model with a manifest registered: in the place of another one, or beside those that are there."""
    versions, version = model.versions, manifest.version
    if not versions.registered:
        made = Versions(manifest.name, (version,), {PLAIN: Alias(version)})
        return _Model(made, {version: content})
    if version in versions.registered:
        return _Model(versions, {**model.content, version: content})
    now = versions.exchanged(versions.default, version) if replace else versions.added(version)
    return _Model(now, {**model.content, version: content})


def _version_in(text: str) -> str:
    """Return the version in a manifest; that of one without any if it cannot be read, which `get` reports."""
    try:
        return text_of_version(json.loads(text).get("version"), "") or _NO_VERSION
    except (ValueError, RecursionError, AttributeError, ManifestError):
        return _NO_VERSION
