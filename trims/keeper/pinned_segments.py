"""Host segments that stay registered with the device while their mover lives: the next copy from one pays nothing.

Pinning the pages of a segment takes longer than copying them. A kept registration holds the segment's pages, so it is
given up when the segment has no name any more, for the daemon has then freed it.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trims.core.units import align_up
from trims.memory.mapping import FileMapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.memory.cuda.api import Cuda

_Key = tuple[int, int, int]


class _Segment:
    """A segment that is mapped and registered. Raises what the driver says."""

    def __init__(self, cuda: Cuda, fd: int, nbytes: int) -> None:
        self._cuda = cuda
        self.nbytes = nbytes
        self._mapping = FileMapping(fd, nbytes, align=True)
        self.address = self._mapping.address
        try:
            cuda.host_register(self.address, align_up(nbytes, mmap.PAGESIZE))
        except BaseException:
            self._mapping.close()
            raise
        self._fd = os.dup(fd)

    @property
    def named(self) -> bool:
        return os.fstat(self._fd).st_nlink > 0

    def close(self) -> None:
        os.close(self._fd)
        try:
            self._cuda.host_unregister(self.address)
        finally:
            self._mapping.close()


class PinnedSegments:
    """Registered segments, the longest unused first.

    Args:
        cuda: The driver; its context is current where methods are called.
        most_bytes: Bytes that stay registered at most; None for a quarter of the host's memory.
    """

    def __init__(self, cuda: Cuda, most_bytes: int | None = None) -> None:
        self._cuda = cuda
        self._most_bytes = _quarter_of_memory() if most_bytes is None else most_bytes
        self._kept: OrderedDict[_Key, _Segment] = OrderedDict()

    def has(self, fd: int, nbytes: int) -> bool:
        """Return whether so many bytes of a file are registered."""
        return _key(fd, nbytes) in self._kept

    @contextmanager
    def address(self, fd: int, nbytes: int) -> Iterator[int]:
        """Have a file's bytes registered for the block, and longer if the file has a name. Yield their address.

        Raises what the driver says.
        """
        key = _key(fd, nbytes)
        segment = self._kept.pop(key, None) or _Segment(self._cuda, fd, nbytes)
        try:
            yield segment.address
        finally:
            self._kept[key] = segment
            self.tidy()

    def tidy(self) -> None:
        """Give up segments whose files have no name any more, and the longest unused ones beyond the bound."""
        for key, segment in list(self._kept.items()):
            if not segment.named:
                self._kept.pop(key).close()
        while sum(segment.nbytes for segment in self._kept.values()) > self._most_bytes:
            self._kept.popitem(last=False)[1].close()

    def close(self) -> None:
        """Give up all."""
        while self._kept:
            self._kept.popitem()[1].close()


def _key(fd: int, nbytes: int) -> _Key:
    # While a segment is mapped, its inode's number stands for no other file.
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, nbytes


def _quarter_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
