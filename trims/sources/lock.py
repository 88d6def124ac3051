"""`trims.lock`: what was found at each address when it was first fetched. A later difference is refused, not taken.

The daemon's own lies in its state folder. A file of the same name beside a manifest counts as well, and first: so a
repository of manifests can state what their addresses held. Both are JSON, one object an address, in a fixed order.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError, ManifestError
from trims.sources.files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "trims.lock"
_VERSION = 1
_MOST_BYTES = 64 << 20


class LockFile:
    """The daemon's own file. Safe to use from several threads.

    Args:
        path: Of the file; made when there is something to keep.

    Raises ConfigError if a file is there and is none of ours: what it says must not be lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._entries: dict[str, Any] = read(path) if path.exists() else {}
        except (ManifestError, OSError) as error:
            raise ConfigError(f"{error}; it says what addresses held: mend it, or move it away") from error

    def get(self, address: str) -> Mapping[str, Any] | None:
        """Return what was found at an address; None if it was never fetched."""
        entry: Mapping[str, Any] | None = self._entries.get(address)
        return entry

    def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return a copy of all that was found, by address."""
        with self._lock:
            return dict(self._entries)

    def put(self, address: str, entry: Mapping[str, Any]) -> None:
        """Keep what was found at an address. Raises OSError if it cannot be written: then nothing is trusted later."""
        with self._lock:
            changed = {**self._entries, address: dict(entry)}
            self._write(changed)
            self._entries = changed

    def forget(self, address: str) -> None:
        """Forget an address. Idempotent. Raises OSError."""
        with self._lock:
            if address in self._entries:
                changed = {each: entry for each, entry in self._entries.items() if each != address}
                self._write(changed)
                self._entries = changed

    def _write(self, entries: Mapping[str, Any]) -> None:
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                file.write(written(entries))
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._path)
        finally:
            unfinished.unlink(missing_ok=True)
        sync_folder(self._path.parent)


def written(entries: Mapping[str, Any]) -> bytes:
    """Return a lock file's bytes."""
    return json.dumps({"trims_lock": _VERSION, "addresses": entries}, indent=1, sort_keys=True).encode() + b"\n"


def portable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry says on any machine: without paths of this one."""
    return {name: value for name, value in entry.items() if name != "folder"}


def read(path: Path) -> dict[str, Any]:
    """Return a lock file's entries by address. Raises ManifestError naming the file, OSError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ManifestError(f"{path} has more than {_MOST_BYTES >> 20} MiB: it is no lock file of trims")
        raw = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is no lock file of trims: {error}") from error
    entries = raw.get("addresses") if isinstance(raw, dict) and raw.get("trims_lock") == _VERSION else None
    if not isinstance(entries, dict) or not all(isinstance(each, dict) for each in entries.values()):
        raise ManifestError(f"{path} is no lock file of trims, or one of a later version")
    return entries


def beside(origin: str) -> dict[str, Any]:
    """Return the entries of the lock file in a manifest's folder; nothing without one. Raises as `read`."""
    path = Path(origin, NAME)
    return read(path) if origin and path.is_file() else {}
