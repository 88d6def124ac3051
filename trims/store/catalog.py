"""Catalog of facts that the store keeps between lives: digests of files, images it has made, names, pins, seals.

Everything here but pins can be found out again; losing the file costs time, never weights. A file's digest counts for
as long as device, inode, length and both times are the ones it was read with.

What the attach door asks for (names, pins, workspaces) lies in memory. New facts are kept in memory at once; a thread
writes them to disk later, in order, so that a slow or locked disk delays no open. Only a pin is written before it
counts.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import TrimsError
from trims.registry.sqlite import connect
from trims.store.catalog_file import has_table, open_catalog
from trims.store.work import thread_pool

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from trims.store.work import Pools

log = logging.getLogger(__name__)
#: Names of this form are paths that were opened without a manifest.
FILE_PREFIX = "file:"
#: Most paths without a manifest, and most rows of files and of images, that are kept; the oldest are forgotten first.
_MOST_PATHS = 20_000
_MOST_ROWS = 100_000
#: Rows that are written before the tables are cut to that.
_CUT_EVERY = 10_000


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image that was made here once."""

    key: str
    name: str
    recipe: Mapping[str, Any]
    nbytes: int
    cost_s: float


def identity_of(path: Path | str) -> str:
    """Return a text that changes whenever the file is written, replaced or touched. Raises OSError.

    A write through a shared mapping changes the times only when the kernel writes the pages back: `always_hash` is for
    artifacts that are written that way.
    """
    status = os.stat(path)
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def same_file(identity: str, other: str) -> bool:
    """Return whether two identities of a path are of one file, however much was written to it between them."""
    return identity.split(":")[:2] == other.split(":")[:2]


def identities_of(files: Sequence[Path]) -> tuple[str, ...]:
    """Return the identities of all files; empty if one cannot be looked at, which counts as changed."""
    try:
        return tuple(identity_of(file) for file in files)
    except OSError:
        return ()


#: Name of the file in a state folder.
CATALOG = "catalog.db"


class Catalog:
    """The sqlite file behind a store. Safe to call from several threads.

    Args:
        path: The file. One that is damaged is moved aside, because all but pins can be found out again.
        pools: Makes the pool that writes.
    """

    def __init__(self, path: Path, pools: Pools = thread_pool) -> None:
        self._path = path
        #: Locks that guard one thing each: the writing connection, the reading one, the maps of names. The last is
        #: never held while a disk is waited for.
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._naming = threading.Lock()
        self._db = open_catalog(path)
        self._reader = connect(path, "")
        #: Support for signatures: false for a catalog of an earlier version on a full disk, which gets no table for
        #: them.
        self._keeps_signatures = has_table(self._db, "signatures")
        #: Rows not written yet: statement and values, in order.
        self._unwritten: deque[tuple[str, tuple[object, ...]]] = deque()
        #: Rows of `_unwritten` that reads must find, by table and key.
        self._fresh: dict[tuple[str, str], Any] = {}
        self._flushing = False
        self._keys: dict[str, tuple[str, str]] = {}
        self._names: dict[str, dict[str, None]] = {}
        #: Names that are paths, in the order in which they were last looked at.
        self._paths: OrderedDict[str, None] = OrderedDict()
        self._pins = {(name, place): bool(on) for name, place, on in self._db.execute("SELECT * FROM pins")}
        for name, key, manifest in self._db.execute("SELECT name, key, manifest FROM names ORDER BY rowid"):
            self._name(name, key, manifest)
        #: Formats found by looking into artifacts: name -> format and manifest. A frozen file of before has none.
        self._formats: dict[str, tuple[str, str]] = {}
        self._keeps_formats = has_table(self._db, "formats")
        if self._keeps_formats:
            self._formats = {name: (found, text) for name, found, text in self._db.execute("SELECT * FROM formats")}
        self._until_cut = 0
        self._writer = pools("catalog", 1)
        self._forget_paths()

    # -- files and images ------------------------------------------------------------------------------------------

    def digests(self, path: str, identity: str) -> tuple[str, str | None] | None:
        """Return blake3 and, where known, sha256 of a file that has not changed since."""
        fresh = self._fresh.get(("digests", path))
        row = fresh or self._row("SELECT identity, blake3, sha256 FROM digests WHERE path = ?", path)
        return (row[1], row[2]) if row is not None and row[0] == identity else None

    def remember_digests(self, path: str, identity: str, blake3: str, sha256: str | None) -> None:
        """Keep the digests that were computed from the file."""
        self._fresh["digests", path] = (identity, blake3, sha256)
        self._remember("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)", (path, identity, blake3, sha256))

    def image(self, key: str) -> ImageRecord | None:
        """Return the record of an image, or None if it was never made here."""
        fresh: ImageRecord | None = self._fresh.get(("images", key))
        if fresh is not None:
            return fresh
        row = self._row("SELECT key, name, recipe, nbytes, cost_s FROM images WHERE key = ?", key)
        return ImageRecord(row[0], row[1], json.loads(row[2]), row[3], row[4]) if row else None

    def remember_image(self, record: ImageRecord) -> None:
        """Keep that the image was made."""
        self._fresh["images", record.key] = record
        made = (record.key, record.name, json.dumps(record.recipe), record.nbytes, record.cost_s, time.time())
        self._remember("INSERT OR REPLACE INTO images VALUES (?, ?, ?, ?, ?, ?)", made)

    def seal_of(self, label: str) -> str | None:
        """Return the identity that a segment had when its bytes were last known to be right."""
        fresh = self._fresh.get(("seals", label))
        row = self._row("SELECT identity FROM seals WHERE label = ?", label) if fresh is None else fresh
        return str(row[0]) if row else None

    def remember_seal(self, label: str, identity: str | None) -> None:
        """Keep that a segment's bytes are right as long as it has this identity; None forgets it."""
        self._fresh["seals", label] = () if identity is None else (identity,)
        if identity is None:
            self._remember("DELETE FROM seals WHERE label = ?", (label,))
        else:
            self._remember("INSERT OR REPLACE INTO seals VALUES (?, ?)", (label, identity))

    def forget_seals_except(self, labels: Collection[str]) -> None:
        """Keep the seals of these segments only: no others are left."""
        known = {label for (label,) in self._rows("SELECT label FROM seals")}
        for label in known.difference(labels):
            self.remember_seal(label, None)

    def signature_of(self, key: str) -> str | None:
        """Return the stored inputs and outputs of an image's model; None if there are none."""
        fresh: str | None = self._fresh.get(("signatures", key))
        if not self._keeps_signatures:
            return None
        row = self._row("SELECT signature FROM signatures WHERE key = ?", key) if fresh is None else (fresh,)
        return str(row[0]) if row else None

    def remember_signature(self, key: str, signature: str) -> None:
        """Keep the inputs and outputs of an image's model."""
        if not self._keeps_signatures:
            return
        self._fresh["signatures", key] = signature
        self._remember("INSERT OR REPLACE INTO signatures VALUES (?, ?)", (key, signature))

    def workspaces(self) -> dict[str, int]:
        """Return the bytes that readers of each image need on a device beside it, by image key."""
        return dict(self._rows("SELECT key, nbytes FROM workspaces"))

    def remember_workspace(self, key: str, nbytes: int) -> None:
        """Keep what an image's readers need."""
        self._remember("INSERT OR REPLACE INTO workspaces VALUES (?, ?)", (key, nbytes))

    # -- names: all in memory --------------------------------------------------------------------------------------

    def key_of(self, name: str) -> str | None:
        """Return the key a name stood for last time."""
        found = self._keys.get(name)
        return None if found is None else found[0]

    def key_under(self, name: str, manifest: str) -> str | None:
        """Return the key a name stood for last time, if that was under this manifest."""
        found = self._keys.get(name)
        return found[0] if found is not None and found[1] == manifest else None

    def remember_key(self, name: str, key: str, manifest: str) -> str | None:
        """Keep what a name stands for under this manifest. Return the key that no name stands for any more, if any."""
        before = self.key_of(name)
        if self._keys.get(name) != (key, manifest):
            with self._naming:
                self._name(name, key, manifest)
            self._remember("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (name, key, manifest))
            self._forget_paths()
        elif name in self._paths:
            with self._naming:
                self._paths[name] = None
                self._paths.move_to_end(name)
        return before if before is not None and not self._names.get(before) else None

    def format_under(self, name: str, manifest: str) -> str:
        """Return the format that the artifact of a name was found to have under this manifest; empty if unknown."""
        found, under = self._formats.get(name, ("", ""))
        return found if under == manifest else ""

    def remember_format(self, name: str, found: str, manifest: str) -> None:
        """Keep the format that a registered name's artifact was found to have under this manifest."""
        if not name.startswith(FILE_PREFIX) and self._formats.get(name) != (found, manifest):
            self._formats[name] = (found, manifest)
            if self._keeps_formats:
                self._remember("INSERT OR REPLACE INTO formats VALUES (?, ?, ?)", (name, found, manifest))

    def models(self) -> dict[str, str]:
        """Return the names that are no paths, each with the manifest, as JSON, under which it was looked into last."""
        return {name: manifest for name, (_, manifest) in self._keys.items() if not name.startswith(FILE_PREFIX)}

    def names_of(self, key: str) -> list[str]:
        """Return all names that stand for this image."""
        return sorted(self._names.get(key, ()))

    def manifests_of(self, key: str) -> list[str]:
        """Return the manifests, as JSON, under which names stand for this image."""
        return [self._keys[name][1] for name in self.names_of(key)]

    def forget(self, name: str) -> None:
        """Forget a name that is not registered any more. Raises TrimsError if that cannot be written."""
        with self._lock:
            self._flush("DELETE FROM names WHERE name = ?", (name,))
            if self._keeps_formats:
                self._flush("DELETE FROM formats WHERE name = ?", (name,))
            self._flush("DELETE FROM pins WHERE name = ?", (name,))
        self._formats.pop(name, None)
        with self._naming:
            self._unname(name)
            self._pins = {where: on for where, on in self._pins.items() if where[0] != name}

    def rename(self, before: str, name: str) -> None:
        """Keep everything known of one name under another one. Raises TrimsError if that cannot be written."""
        with self._lock:
            for table in ("names", "pins", *(["formats"] if self._keeps_formats else [])):
                self._unwritten.append((f"UPDATE OR REPLACE {table} SET name = ? WHERE name = ?", (name, before)))  # noqa: S608
            self._flush()
        if before in self._formats:
            self._formats[name] = self._formats.pop(before)
        with self._naming:
            known = self._keys.get(before)
            self._unname(before)
            if known is not None:
                self._name(name, *known)
            self._pins = {
                (name if pinned == before else pinned, place): on for (pinned, place), on in self._pins.items()
            }

    def _name(self, name: str, key: str, manifest: str) -> None:
        self._unname(name)
        self._keys[name] = (key, manifest)
        self._names.setdefault(key, {})[name] = None
        if name.startswith(FILE_PREFIX):
            self._paths[name] = None

    def _unname(self, name: str) -> None:
        before = self._keys.pop(name, None)
        self._paths.pop(name, None)
        if before is not None:
            names = self._names[before[0]]
            del names[name]
            if not names:
                del self._names[before[0]]

    def _forget_paths(self) -> None:
        """Forget the paths looked at least recently, beyond `_MOST_PATHS`. Keep a path that is pinned."""
        forgotten = []
        with self._naming:
            for _ in range(len(self._paths) - _MOST_PATHS):
                name, _ = self._paths.popitem(last=False)
                if any(pinned == name for pinned, _ in self._pins):
                    self._paths[name] = None
                else:
                    self._unname(name)
                    forgotten.append(name)
        for name in forgotten:
            self._remember("DELETE FROM names WHERE name = ?", (name,))

    # -- pins: all in memory ---------------------------------------------------------------------------------------

    def pins(self) -> list[tuple[str, str]]:
        """Return all pins as (name, place)."""
        return sorted(where for where, pinned in self._pins.items() if pinned)

    def pinned(self, name: str, place: str) -> bool | None:
        """Return whether the name is pinned there; False after an operator's unpin, None if neither ever happened."""
        return self._pins.get((name, place))

    def pin(self, name: str, place: str, *, pinned: bool) -> None:
        """Keep a pin, or that it was taken back. Raises TrimsError if it cannot be written: a pin is never lost."""
        known = self._keys.get(name)
        with self._lock:
            if known is not None:  # what the name stands for, too: else the next daemon would not know what is pinned
                self._unwritten.append(("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (name, *known)))
            self._flush("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", (name, place, int(pinned)))
            self._pins[name, place] = pinned

    def remember_pin(self, name: str, place: str) -> None:
        """Keep a pin that a manifest states. It counts at once, and again whenever the model is opened."""
        self._pins[name, place] = True
        self._remember("INSERT OR REPLACE INTO pins VALUES (?, ?, 1)", (name, place))

    # -- the file --------------------------------------------------------------------------------------------------

    def _rows(self, question: str) -> list[Any]:
        with self._reading:
            return list(self._reader.execute(question))

    def _row(self, question: str, key: str) -> Any:
        with self._reading:
            return self._reader.execute(question, (key,)).fetchone()

    def _remember(self, statement: str, values: tuple[object, ...]) -> None:
        """Have a row written soon. Failures are only logged: a full disk must not fail an open."""
        self._unwritten.append((statement, values))
        if not self._flushing:
            self._flushing = True
            self._writer.submit(self._write_behind)

    def _write_behind(self) -> None:
        self._flushing = False  # first: what is appended from now on is either seen below or submits again
        try:
            with self._lock:
                self._flush()
        except (TrimsError, sqlite3.Error) as error:
            log.warning("%s: not remembered: %s", self._path, error)

    def _flush(self, statement: str = "", values: tuple[object, ...] = ()) -> None:
        """Write, under the lock, what is unwritten, then one statement more, in one transaction."""
        batch = list(self._unwritten)
        for _ in batch:
            self._unwritten.popleft()
        fresh = dict(self._fresh)
        if statement:
            batch.append((statement, values))
        if not batch:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for each, with_values in [*batch, *self._cuts(len(batch))]:
                self._db.execute(each, with_values)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        finally:
            for row, value in fresh.items():
                if self._fresh.get(row) is value:
                    del self._fresh[row]

    def _cuts(self, written: int) -> list[tuple[str, tuple[object, ...]]]:
        """Return, after each `_CUT_EVERY` rows, the statements that cut the tables to their newest rows; else none."""
        self._until_cut -= written
        if self._until_cut > 0:
            return []
        self._until_cut = _CUT_EVERY
        cut = "DELETE FROM {0} WHERE rowid <= (SELECT max(rowid) FROM {0}) - ?"
        tables = ("digests", "images", *(["signatures"] if self._keeps_signatures else []))
        return [(cut.format(table), (_MOST_ROWS,)) for table in tables]

    def close(self) -> None:
        """Write what is unwritten and close the file. Idempotent."""
        self._writer.stop()
        with self._lock, self._reading:
            self._db.close()
            self._reader.close()
