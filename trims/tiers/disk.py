"""The disk tier: a folder of images under content-true names.

`images/<key>.<digest>.safetensors` is written under a temporary name, synced, and renamed, so that a name is a promise.
Whether the bytes still keep it is checked by length when the file is found and, when it was touched since this daemon
checked it, by digest.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from typing import TYPE_CHECKING

from trims.core.errors import ImageError, NoSpaceError
from trims.core.place import DISK, Place
from trims.core.units import format_bytes
from trims.tiers.base import Draft, Extent, explain_descriptors, identity_of
from trims.tiers.checking import Skipped, check_ends, verify_bytes

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)
_NAME = re.compile(r"([0-9a-f]{16,64})\.([0-9a-f]{64})\.safetensors\Z")
_UNFINISHED = ".filling"


class DiskTier:
    """Images in one folder of this daemon's own.

    Args:
        folder: Made if it is not there.
    """

    place: Place = DISK
    hash_on_adoption: bool = False

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._folder = folder
        self._open: dict[str, Extent] = {}
        self._skipped = Skipped(self.place)

    @property
    def skipped(self) -> int:
        """See `Tier.skipped`."""
        return len(self._skipped)

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`. Blocks are always reserved: a disk that fills up should say so first."""
        del allocate
        path = self._folder / f"{key[:16]}-{os.getpid()}-{generation}{_UNFINISHED}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self.explain(error, nbytes) from error
        draft = Draft(fd, nbytes, str(path))
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            self.abort(draft)
            raise self.explain(error, nbytes) from error
        return draft

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`."""
        path = self._folder / f"{key}.{digest}.safetensors"
        try:
            os.fchmod(draft.fd, 0o400)
            os.fsync(draft.fd)
            os.rename(draft.label, path)
            self._sync_folder()
            extent = self._hold(key, digest, path)
        except BaseException:
            self.abort(draft)
            _remove(str(path))
            raise
        os.close(draft.fd)
        return extent

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`."""
        os.close(draft.fd)
        _remove(draft.label)

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        return disk_full(error, nbytes, self._folder)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        _remove(extent.label)
        if self._open.pop(extent.label, None) is not None:
            extent.close()

    def scan(self) -> Iterator[Extent]:
        """See `Tier.scan`. Digests are checked when images are first read."""
        self._skipped = Skipped(self.place)
        for path in self._paths():
            if not _NAME.match(path.name) and not path.name.endswith(_UNFINISHED):
                log.warning("%s is not an image of trims; it is left alone and not counted", path)
                continue
            extent = self._find(path)
            if extent is not None:
                yield extent
        self._skipped.log_all()

    def leave(self, extent: Extent) -> None:
        """See `Tier.leave`."""
        self._open.pop(extent.label).close()

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier.verify`."""
        verify_bytes(extent, cancelled, pace)

    def close(self) -> None:
        """See `Tier.close`."""
        for extent in self._open.values():
            extent.close()
        self._open.clear()

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            self._skipped.add(str(self._folder), error)
            return []

    def _find(self, path: Path) -> Extent | None:
        """Return the image at this path; None if it is removed, left alone, or gone meanwhile."""
        try:
            return self._adopt(path)
        except ImageError as error:
            log.warning("disk image %s is removed: %s", path, error)
            self._discard(path)
        except FileNotFoundError:
            log.info("disk image %s went while it was looked for", path)
        except OSError as error:
            self._skipped.add(str(path), error)
        return None

    def _discard(self, path: Path) -> None:
        try:
            _remove(str(path))
        except OSError as error:
            self._skipped.add(str(path), error)

    def _hold(self, key: str, digest: str, path: Path) -> Extent:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        extent = Extent(key, self.place, os.fstat(fd).st_size, digest, fd, str(path))
        self._open[extent.label] = extent
        return extent

    def _adopt(self, path: Path) -> Extent:
        stated = _NAME.match(path.name)
        if stated is None:
            raise ImageError("it was never finished")
        extent = self._hold(stated.group(1), stated.group(2), path)
        try:
            check_ends(extent.fd, extent.nbytes)
            extent.fresh, extent.identity = False, identity_of(extent.fd)
        except BaseException:
            self._open.pop(extent.label).close()
            raise
        return extent

    def _sync_folder(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def disk_full(error: OSError, nbytes: int, folder: Path) -> Exception:
    """NoSpaceError if the disk was full, CapacityError if no descriptor was left, else the error itself."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return explain_descriptors(error)
    return NoSpaceError(
        f"the disk under {folder} is full: {format_bytes(nbytes)} needed; free some, or move the folder",
        _room_bytes(folder) if error.errno == errno.ENOSPC else None,
    )


def _room_bytes(folder: Path) -> int | None:
    """Return the bytes that are free there for this user; None if the file system does not say."""
    try:
        held = os.statvfs(folder)
    except OSError:
        return None
    return held.f_bavail * held.f_frsize


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
