"""Files of addresses in the daemon's own folder of downloads, each set of files in a folder of its own.

A folder is named by a hash of the address, as it was pinned, and of all versions there: files of two versions never
lie beside each other. What is incomplete has a name that no file of an address can have.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError, DeadlineError
from trims.manifests.fields import check_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trims.sources.base import RemoteFile

#: Folder below a set's own for what is not a file of the address. No address names a file with a blank in front.
_OWN = " trims"
_LOOK_AGAIN_S = 0.1


class Folder:
    """A `Destination` below the folder of downloads.

    Args:
        downloads: The folder of all downloads.
        pinned: The address.
        files: All that lies there, with their versions.
    """

    def __init__(self, downloads: Path, pinned: str, files: Sequence[RemoteFile]) -> None:
        listed = sorted((file.name, file.version, file.nbytes, sorted(file.checksums.items())) for file in files)
        name = hashlib.sha256(json.dumps([pinned, listed]).encode()).hexdigest()[:32]
        self.path = downloads / name
        self._own = self.path / _OWN

    def find(self, file: RemoteFile) -> Path | None:
        """See `Destination.find`."""
        path = self._path(file)
        try:
            return path if path.stat().st_size == file.nbytes else None
        except OSError:
            return None

    def partial(self, file: RemoteFile) -> Path:
        """See `Destination.partial`."""
        self._own.mkdir(parents=True, exist_ok=True)
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
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(path)
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


@contextlib.contextmanager
def exclusive(path: Path, wanted: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a file for a block, as `flock` has it. Raises DeadlineError once `wanted()` is false."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wanted():
                    raise DeadlineError(f"another process writes {path.stem}, and has not ended in time") from None
                time.sleep(_LOOK_AGAIN_S)
        yield
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
