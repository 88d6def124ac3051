"""The disk tier: a folder of images under content-true names.

`images/<key>.<digest>.safetensors` is written under a temporary name, synced, and renamed, so that a name is a promise.
Whether the bytes still keep it is checked by length and, when the file was touched since this daemon checked it, by
digest.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, ImageError
from trims.core.place import DISK, Place
from trims.image.index import HEADER, LENGTH, decode_header
from trims.tiers.base import Draft, Extent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)
_NAME = re.compile(r"([0-9a-f]{16,64})\.([0-9a-f]{64})\.safetensors\Z")
_UNFINISHED = ".filling"


class DiskTier:
    """Images in one folder of this daemon's own.

    Args:
        folder: Made if it is not there.
        capacity_bytes: What residency may put here.
    """

    place: Place = DISK

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._folder = folder
        self._open: dict[str, Extent] = {}

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`. Blocks are always reserved: a disk that fills up should say so first."""
        del allocate
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{key[:16]}-{os.getpid()}-{generation}{_UNFINISHED}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            self.abort(Draft(fd, nbytes, str(path)))
            raise disk_full(error, nbytes, self._folder) from error
        return Draft(fd, nbytes, str(path))

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
            os.close(extent.fd)

    def scan(self) -> Iterator[Extent]:
        """Adopt images whose length agrees with their header; digests are checked when they are first read."""
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):
            if not _NAME.match(path.name) and not path.name.endswith(_UNFINISHED):
                log.warning("%s is not an image of trims; it is left alone and not counted", path)
                continue
            try:
                extent = self._adopt(path)
            except (ImageError, OSError) as error:
                log.warning("disk image %s is removed: %s", path, error)
                _remove(str(path))
            else:
                yield extent

    def close(self) -> None:
        """See `Tier.close`."""
        for extent in self._open.values():
            os.close(extent.fd)
        self._open.clear()

    def _hold(self, key: str, digest: str, path: Path) -> Extent:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        extent = Extent(key, self.place, os.fstat(fd).st_size, digest, fd, str(path))
        self._open[extent.label] = extent
        return extent

    def _adopt(self, path: Path) -> Extent:
        stated = _NAME.match(path.name)
        if stated is None:
            raise ImageError("it was never finished")
        extent = self._hold(stated.group(1), stated.group(2), path)
        extent.fresh = False
        try:
            _check_length(extent)
        except BaseException:
            self._open.pop(extent.label)
            os.close(extent.fd)
            raise
        return extent

    def _sync_folder(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def disk_full(error: OSError, nbytes: int, folder: Path) -> Exception:
    """CapacityError if the disk was full, else the error itself."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    return CapacityError(f"the disk under {folder} is full: {nbytes} bytes needed; free some, or move the folder")


def _check_length(extent: Extent) -> None:
    """The cheap check: the end that header and index give is the file's."""
    prefix = os.pread(extent.fd, LENGTH.size, 0)
    if len(prefix) < LENGTH.size:
        raise ImageError("it is too short to be an image")
    start = LENGTH.size + LENGTH.unpack(prefix)[0]
    if not 0 < start <= extent.nbytes:
        raise ImageError("its header claims more bytes than the file has")
    data_bytes = decode_header(os.pread(extent.fd, HEADER.size, start)).data_bytes
    if start + data_bytes != extent.nbytes:
        raise ImageError(f"its index describes {start + data_bytes} bytes, the file has {extent.nbytes}")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
