"""The daemon's folder of downloads, kept within a capacity: what was used least recently goes first.

What goes is fetched again when it is wanted. A hub's cache is not here, and nothing of it ever goes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from typing import TYPE_CHECKING

from trims.core.errors import NoSpaceError
from trims.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

#: Name of the setting, which marks errors about it.
CAPACITY = "download_capacity_bytes"
log = logging.getLogger(__name__)


class Downloads:
    """Folders of sets of files, as `Folder` makes them. Safe to use from several threads.

    Args:
        folder: The folder of all; made when there is something to fetch.
        capacity_bytes: Most bytes of all sets together.
    """

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.folder = folder
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._is_read: Callable[[Path], bool] = lambda folder: False  # noqa: ARG005

    def connect(self, is_read: Callable[[Path], bool]) -> None:
        """Name who knows whether a session reads files of a folder: those stay."""
        self._is_read = is_read

    def used(self, folder: Path) -> None:
        """Note that files of a folder were used; a folder elsewhere is none of ours."""
        if folder.parent == self.folder:
            with contextlib.suppress(OSError):
                os.utime(folder)

    def keep_within(self, busy: Collection[Path] = ()) -> None:
        """Remove what was used least recently until all fits the capacity, but for folders that are `busy` or read."""
        self._remove(lambda held: held > self._capacity_bytes, busy)

    def make_room(self, nbytes: int, busy: Collection[Path] = ()) -> bool:
        """Remove what was used least recently until so many bytes are free. Return whether anything was removed."""
        return self._remove(lambda held: self._free() < nbytes, busy)  # noqa: ARG005

    def make_room_within(self, nbytes: int, room_bytes: int, busy: Collection[Path] = ()) -> bool:
        """Remove what was used least recently until a set fits the capacity, if it ever does.

        Args:
            room_bytes: Left by the others, also by those that are being fetched.
            busy: Folders that stay.

        Returns:
            Whether anything was removed.
        """
        held_bytes = sum(each for _, each in self.sets())
        fits = nbytes <= self._capacity_bytes
        return fits and self._remove(lambda held: held_bytes - held < nbytes - room_bytes, busy)

    def sets(self) -> list[tuple[Path, int]]:
        """Return all sets and their bytes on the disk, the one that was used least recently first."""
        found = []
        for folder in self._folders():
            with contextlib.suppress(OSError):
                found.append((folder.stat().st_mtime_ns, folder, bytes_in(folder)))
        return [(folder, nbytes) for _, folder, nbytes in sorted(found)]

    def remove(self, folder: Path) -> int:
        """Remove a set. Return its bytes. Readers that have its files open keep them."""
        nbytes = bytes_in(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return nbytes

    def _remove(self, lacks: Callable[[int], bool], busy: Collection[Path]) -> bool:
        with self._lock:
            sets = self.sets()
            held, removed = sum(nbytes for _, nbytes in sets), False
            for folder, nbytes in sets:
                if not lacks(held):
                    break
                if folder not in busy and not self._is_read(folder):
                    log.info("%s is removed for room: %s", folder, format_bytes(nbytes))
                    held -= self.remove(folder)
                    removed = True
            return removed

    def _free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def _folders(self) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            yield from (each for each in self.folder.iterdir() if each.is_dir() and not each.is_symlink())


class Room:
    """Capacity of a folder of downloads, as the process that moves bytes keeps it: before and during transfers.

    Args:
        downloads: The folder.
        capacity_bytes: Most bytes of all sets together; None for no bound.
    """

    def __init__(self, downloads: Path, capacity_bytes: int | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._downloads = Downloads(downloads, capacity_bytes or 0)
        self._lock = threading.Lock()
        #: Lengths of the sets that are being fetched, some of which are not there yet.
        self._taken: dict[Path, int] = {}

    @contextlib.contextmanager
    def taken(self, folder: Path, nbytes: int) -> Iterator[None]:
        """Keep room for a set of files during a block.

        Raises NoSpaceError, which names the setting, if it does not fit beside the others.
        """
        with self._lock:
            if self._capacity_bytes is not None:
                self._check(self._capacity_bytes, folder, nbytes)
            self._taken[folder] = nbytes
        try:
            yield
        finally:
            with self._lock:
                self._taken.pop(folder, None)

    def _check(self, capacity_bytes: int, folder: Path, nbytes: int) -> None:
        others = {each: held for each, held in [*self._downloads.sets(), *self._taken.items()] if each != folder}
        room_bytes = capacity_bytes - sum(others.values())
        if nbytes > room_bytes:
            raise NoSpaceError(
                f"{format_bytes(nbytes)} are to be fetched, and downloads may take {format_bytes(capacity_bytes)} "
                f"({CAPACITY}), of which {format_bytes(max(0, room_bytes))} are free; raise it, or remove models "
                "(`trims rm`, `trims prune`)",
                max(0, room_bytes),
            )


def bytes_in(folder: Path) -> int:
    """Return the bytes that a folder's files take on the disk."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
