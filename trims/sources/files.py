"""Files of addresses in the daemon's own folder of downloads, each set of files in a folder of its own.

A folder is named by a hash of the address (`address_identity`) and of all versions there: files of two versions never
lie beside each other, nor do those of two addresses whose servers state the same versions. What is incomplete has a
name that no file of an address can have.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError, DeadlineError, NoSpaceError
from trims.core.units import format_bytes
from trims.manifests.addresses import address_identity
from trims.manifests.fields import check_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trims.sources.base import RemoteFile

#: Folder below a set's own for what is not a file of the address. No address names a file with a blank in front.
_OWN = " trims"
#: Name of the file there that says what the set was fetched from, also of a set that is not whole yet.
_ADDRESS = "address"
_LOOK_AGAIN_S = 0.1
#: Refusals of a name: too long, or that of a file and of a folder at once.
_NO_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY)


class Folder:
    """A `Destination` below the folder of downloads.

    Args:
        downloads: The folder of all downloads.
        files: All that lies there, with their versions.
    """

    def __init__(self, downloads: Path, address: str, files: Sequence[RemoteFile]) -> None:
        listed = sorted((file.name, file.version, file.nbytes, sorted(file.checksums.items())) for file in files)
        name = hashlib.sha256(json.dumps([address_identity(address), listed]).encode()).hexdigest()[:32]
        self.path = downloads / name
        self._own, self._address = self.path / _OWN, address

    def find(self, file: RemoteFile) -> Path | None:
        """See `Destination.find`. Of a file without a version or a checksum, nothing here is known to be the same."""
        path = self._path(file)
        if not (file.version or file.checksums):
            return None
        try:
            return path if path.stat().st_size == file.nbytes else None
        except OSError:
            return None

    def partial(self, file: RemoteFile) -> Path:
        """See `Destination.partial`."""
        self._own.mkdir(parents=True, exist_ok=True)
        if address_in(self.path) != self._address:
            with open(self._own / _ADDRESS, "w", opener=_private) as note:
                note.write(self._address)
        return self._own / hashlib.sha256(file.name.encode()).hexdigest()[:32]

    @contextlib.contextmanager
    def lock(self, file: RemoteFile, wanted: Callable[[], bool]) -> Iterator[None]:
        """See `Destination.lock`."""
        path = self.partial(file)
        with exclusive(path.with_name(path.name + ".lock"), wanted):
            yield

    def publish(self, file: RemoteFile, partial: Path) -> Path:
        """See `Destination.publish`."""
        path = self._path(file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.rename(path)
        except OSError as error:
            if error.errno not in _NO_NAME:
                raise
            raise ArtifactError(
                f"its source names a file {file.name!r:.200}, which has no place here: {error}"
            ) from error
        sync_folder(path.parent)
        return path

    def finish(self, files: Sequence[RemoteFile]) -> Path:
        """See `Destination.finish`."""
        del files
        return self.path

    def _path(self, file: RemoteFile) -> Path:
        try:
            name = check_inside(file.name)
        except ValueError as error:
            raise ArtifactError(f"its source names a file {file.name!r:.200}, which leaves its folder") from error
        if name.startswith(" "):
            raise ArtifactError(f"its source names a file {file.name!r:.200}, with a blank in front")
        return self.path / name


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read: an address may have a signature."""
    return os.open(path, flags, 0o600)


def address_in(folder: Path) -> str:
    """Return the address that a set of files is fetched from; empty if its folder does not say."""
    try:
        return (folder / _OWN / _ADDRESS).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


@contextlib.contextmanager
def exclusive(path: Path, wanted: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a file for a block, as `flock` has it. Raises DeadlineError once `wanted()` is false."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(fd, path, wanted)
            if _is_still(fd, path):
                yield
                return
        finally:
            os.close(fd)


def _lock(fd: int, path: Path, wanted: Callable[[], bool]) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wanted():
                raise DeadlineError(f"another process writes {path.stem}, and has not ended in time") from None
            time.sleep(_LOOK_AGAIN_S)
        else:
            return


def _is_still(fd: int, path: Path) -> bool:
    """Return whether an open file still has its name: its folder may have been removed while it was waited for."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_full(error: OSError) -> bool:
    """Return whether an error says that a disk has no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def full(folder: Path, what: str) -> NoSpaceError:
    """Return the error of a disk that is full: `what` does not fit in a folder."""
    free = os.statvfs(folder)
    room = free.f_bavail * free.f_frsize
    return NoSpaceError(
        f"{what} at {folder}, where {format_bytes(room)} are free; make room, or keep downloads elsewhere", room
    )
