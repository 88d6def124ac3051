"""`trims.lock`: what was found at each address when it was first fetched. A later difference is refused, not taken.

The daemon's own lies in its state folder. A file of the same name beside a manifest counts as well, and first: so a
repository of manifests can state what their addresses held. Both are JSON, one object an address, in a fixed order.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError, ManifestError
from trims.manifests.addresses import address_identity
from trims.sources.descriptor import ImageDescription, wrong_fields
from trims.sources.files import full, is_full, sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "trims.lock"
_VERSION = 1
_MOST_BYTES = 64 << 20
#: Fields of a file that hold on this machine only.
_OF_MACHINE = ("identity", "damaged")


class LockFile:
    """The daemon's own file. Safe to use from several threads. Addresses are known by `address_identity`.

    Args:
        path: Path of the file, which is made when there is something to keep.

    Raises ConfigError if a file is there and is none of ours: what it says must not be lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            found = read(path) if path.exists() else {}
            self._entries: dict[str, Any] = {address_identity(address): entry for address, entry in found.items()}
        except (ManifestError, OSError) as error:
            raise ConfigError(f"{error}; it says what addresses held: mend it, or move it away") from error
        for unfinished in path.parent.glob(f".{path.name}.*"):  # of a daemon that was killed while it wrote
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def get(self, address: str) -> Mapping[str, Any] | None:
        """Return what was found at an address; None if it was never fetched."""
        entry: Mapping[str, Any] | None = self._entries.get(address_identity(address))
        return entry

    def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return a copy of all that was found, by address."""
        with self._lock:
            return dict(self._entries)

    def put(self, address: str, entry: Mapping[str, Any]) -> None:
        """Keep what was found at an address. Raises NoSpaceError, ConfigError if it cannot be written."""
        with self._lock:
            changed = {**self._entries, address_identity(address): dict(entry)}
            self._write(changed)
            self._entries = changed

    def forget(self, address: str) -> None:
        """Forget an address. Idempotent. Raises as `put`."""
        known = address_identity(address)
        with self._lock:
            if known in self._entries:
                changed = {each: entry for each, entry in self._entries.items() if each != known}
                self._write(changed)
                self._entries = changed

    def _write(self, entries: Mapping[str, Any]) -> None:
        try:
            _replace(self._path, written(entries))
        except OSError as error:
            if is_full(error):
                raise full(
                    self._path.parent, f"{self._path.name}, which says what was fetched, does not fit"
                ) from error
            raise ConfigError(f"{self._path}, which says what was fetched, cannot be written: {error}") from error


def _replace(path: Path, data: bytes) -> None:
    """Give a file other bytes, all or none of them."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)  # addresses may have signatures
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def written(entries: Mapping[str, Any]) -> bytes:
    """Return a lock file's bytes."""
    return json.dumps({"trims_lock": _VERSION, "addresses": entries}, indent=1, sort_keys=True).encode() + b"\n"


def portable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry says on any machine: without paths of this one."""
    held = {name: value for name, value in entry.items() if name != "folder"}
    if "files" in held:
        held["files"] = [
            {name: each for name, each in file.items() if name not in _OF_MACHINE} for file in held["files"]
        ]
    return held


def read(path: Path) -> dict[str, Any]:
    """Return a lock file's entries by address. Raises ManifestError naming the file and what is wrong, OSError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ManifestError(f"{path} has more than {_MOST_BYTES >> 20} MiB: it is no lock file of trims")
        raw = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is no lock file of trims: {error}") from error
    version = raw.get("trims_lock") if isinstance(raw, dict) else None
    if type(version) is not int or version < 1:
        raise ManifestError(f"{path} is no lock file of trims: it states no version (`trims_lock`)")
    if version != _VERSION:
        raise ManifestError(f"{path} has the version {version}, and this trims reads {_VERSION}; update trims")
    entries = raw.get("addresses")
    if not isinstance(entries, dict):
        raise ManifestError(f"{path} is no lock file of trims: `addresses` is no object")
    for address, entry in entries.items():
        wrong = _wrong(entry)
        if wrong:
            raise ManifestError(f"{path} is damaged: what it says of {address:.200} is no entry: {wrong}")
    return entries


def _wrong(entry: Any) -> str:
    """Return what is wrong with an entry; empty if nothing is."""
    if not isinstance(entry, dict) or type(entry.get("pinned", "")) is not str:
        return "it has no `pinned`"
    image = entry.get("image")
    if image is not None:
        unknown = {} if not isinstance(image, dict) else image.keys() - ImageDescription.__dataclass_fields__.keys()
        return wrong_fields(image) if isinstance(image, dict) and not unknown else "its image is none"
    if type(entry.get("folder", "")) is not str or not isinstance(entry.get("files"), list):
        return "it has neither files nor an image"
    wrong = [file for file in entry["files"] if not _is_file(file)]
    return f"{wrong[0]!r:.200} is no file" if wrong else ""


def _is_file(file: Any) -> bool:
    if not isinstance(file, dict) or type(file.get("name")) is not str or type(file.get("nbytes")) is not int:
        return False
    if type(file.get("damaged", "")) is not str:
        return False
    digests = [file.get("checksums"), file.get("found", {})]
    return all(isinstance(each, dict) and all(type(digest) is str for digest in each.values()) for each in digests)


#: Lock files beside manifests, as they were read last, by path: with what changes when the file does.
_read_before: dict[Path, tuple[list[int], dict[str, Any]]] = {}
_MOST_READ = 64


def beside(origin: str) -> dict[str, Any]:
    """Return the entries of the lock file in a manifest's folder; nothing without one. Raises as `read`."""
    path = Path(origin, NAME)
    if not origin or not path.is_file():
        return {}
    identity = identity_of(path)
    known = _read_before.get(path)
    if known is None or known[0] != identity:
        if len(_read_before) >= _MOST_READ:
            _read_before.clear()
        known = _read_before[path] = identity, read(path)
    return known[1]


def identity_of(path: Path) -> list[int]:
    """Return numbers that change when a file does. Raises OSError."""
    found = path.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
