"""The scheme `share:`: files of a mounted share, which are copied to the local disk before they are served.

`file:` serves a file where it lies, so a share that goes away takes it along. A copy costs time once, and is resumed
after a kill, checked and pinned as any other fetch: all of that is done by trims, above this module.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from trims.errors import ArtifactChangedError, ArtifactNotFoundError, CallerError, SourceUnavailableError
from trims.sources.base import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trims.sources.base import Part
    from trims.sources.settings import SourceSettings

_MOST_FILES = 10_000


class MountedShare:
    """The source."""

    def __init__(self, settings: SourceSettings) -> None:
        del settings  # a share needs no credentials and no network of ours

    def open(self, address: str) -> OpenedShare:
        """Look at a file, or at all files below a folder."""
        parts = urlsplit(address)
        if parts.netloc or not parts.path.startswith("/"):
            raise CallerError(f"{address!r} names no file of this machine; write share:///folder/file")
        path = Path(unquote(parts.path))
        if not path.exists():
            raise ArtifactNotFoundError(f"{address} is not there")
        found = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        if not found or len(found) > _MOST_FILES:
            raise CallerError(f"{address} holds {len(found)} files; a model has 1 to {_MOST_FILES}")
        root = path.parent if path.is_file() else path
        return OpenedShare(address, root, [_described(each, root) for each in found])


class OpenedShare:
    """Files below a folder, as they were looked at."""

    destination = None
    notes: Sequence[str] = ()

    def __init__(self, address: str, root: Path, files: Sequence[RemoteFile]) -> None:
        self.pinned, self.files = address, sorted(files, key=lambda file: file.name)
        self._root = root
        self._closed = False

    def fill(self, file: RemoteFile, parts: Sequence[Part]) -> Iterator[None]:
        """Read each part into place; yield after each."""
        if self._closed:
            raise SourceUnavailableError("the share was closed")
        path = self._root / file.name
        try:
            with open(path, "rb", buffering=0) as source:
                if _described(path, self._root) != file:
                    raise ArtifactChangedError(f"{path} was replaced since it was looked at")
                for offset, room in parts:
                    _read(source.fileno(), room, offset, path)
                    yield
        except FileNotFoundError as error:
            raise ArtifactNotFoundError(f"{path} is gone") from error

    def close(self) -> None:
        """End reads."""
        self._closed = True


def _described(path: Path, root: Path) -> RemoteFile:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CallerError(f"{path} is no file")
    version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    return RemoteFile(path.relative_to(root).as_posix(), status.st_size, version)


def _read(fd: int, room: memoryview, offset: int, path: Path) -> None:
    done = 0
    while done < len(room):
        got = os.preadv(fd, [room[done:]], offset + done)
        if not got:
            raise ArtifactChangedError(f"{path} was cut while it was read")
        done += got
