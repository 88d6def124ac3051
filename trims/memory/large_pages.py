"""Large pages under a segment that is being written, wherever its tmpfs was mounted and without any privilege.

MADV_COLLAPSE (Linux 6.1) makes 2 MiB pages of shared memory on request, whatever the file system's `huge=` says. On
a range that is empty but for one byte it is an allocation: nothing is copied. Pages already reserved cannot be
missing later, so they may be written through a mapping, which is the fastest way in.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from typing import TYPE_CHECKING

from trims.memory.mapping import LARGE_PAGE_BYTES, FileMapping, c_library

if TYPE_CHECKING:
    from pathlib import Path

_COLLAPSE = 25


class LargePages:
    """A writable mapping of an unfinished segment; close it before the segment is sealed.

    Args:
        fd: The segment, open for writing, all holes.
        nbytes: Its length.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self._mapping = FileMapping(fd, nbytes, write=True, align=True)
        self._view = self._mapping.view()
        self._address = self._mapping.address
        self._refused = False

    def reserve(self, begin: int, end: int) -> memoryview | None:
        """Allocate a range in large pages; safe to call from several threads for ranges apart.

        Args:
            begin: A multiple of the large page.
            end: As well, or the segment's end.

        Returns:
            The range, to write into; None if the kernel gives no large pages for all of it, in which case nothing is
            promised and the range must be written through the file.

        Raises:
            OSError: With ENOSPC when the file system is full.
        """
        whole_end = end - end % LARGE_PAGE_BYTES
        if self._refused or begin == whole_end:
            return None
        for position in range(begin, whole_end, LARGE_PAGE_BYTES):
            os.pwrite(self._fd, b"\0", position)  # a range with nothing in it is not collapsed
        if c_library().madvise(self._address + begin, whole_end - begin, _COLLAPSE) != 0:
            # An old kernel, or no memory in one piece: it would say so each time. EAGAIN is a race lost, no more.
            self._refused = ctypes.get_errno() != errno.EAGAIN
            return None
        if end > whole_end:
            os.posix_fallocate(self._fd, whole_end, end - whole_end)
        return self._view[begin:end]

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._view.release()
        self._mapping.close()


def why_no_large_pages(folder: Path) -> str:
    """Try it in a tmpfs: what the kernel says if it gives none, and else nothing."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(LARGE_PAGE_BYTES)
        pages = LargePages(file.fileno(), LARGE_PAGE_BYTES)
        try:
            room = pages.reserve(0, LARGE_PAGE_BYTES)
            if room is None:
                reason = os.strerror(ctypes.get_errno())
                return f"MADV_COLLAPSE: {reason} (it takes Linux 6.1 with transparent large pages)"
            room.release()
            return ""
        finally:
            pages.close()
