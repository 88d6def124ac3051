"""Large pages under a segment that is being written, wherever its tmpfs was mounted and without any privilege.

MADV_COLLAPSE (Linux 6.1) makes 2 MiB pages of shared memory on request, whatever the file system's `huge=` says. On
a range that is empty but for one byte it is an allocation: nothing is copied. Pages already reserved cannot be
missing later, so they may be written through a mapping, which is the fastest way in.

A virtual machine may get its memory from its host page by page, when it is first touched. Then a large page takes
milliseconds instead of a tenth of one, and a kernel without preemption lets no other thread have that processor while
it collapses one. Clearing a large page of private memory does the same work where the kernel gives way, and memory that
is given back is what the next request for as much of it gets. So that is done first, where large pages are seen to be
slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import time
from typing import TYPE_CHECKING

from trims.memory.mapping import LARGE_PAGE_BYTES, FileMapping, c_library

if TYPE_CHECKING:
    from pathlib import Path

_COLLAPSE = 25
#: Seconds that a large page takes at most where the memory under it is there.
_SLOW_S = 0.001


class LargePages:
    """A writable mapping of an unfinished segment; close it before the segment is sealed.

    Args:
        fd: The segment, open for writing, all holes.
        gently: Give way to other threads from the first large page on, and not only once one has been slow.
    """

    def __init__(self, fd: int, nbytes: int, *, gently: bool = False) -> None:
        self._fd = fd
        self._mapping = FileMapping(fd, nbytes, write=True, align=True)
        self._view = self._mapping.view()
        self._address = self._mapping.address
        self._refused = False
        self._gently = gently
        self._slow = gently

    def reserve(self, begin: int, end: int) -> memoryview | None:
        """Allocate a range in large pages; safe to call from several threads for ranges apart.

        Args:
            begin: A multiple of the large page.
            end: Another multiple, or the segment's end.

        Returns:
            The range, to write into; None if the kernel gives no large pages for all of it, in which case nothing is
            promised and the range must be written through the file.

        Raises:
            OSError: ENOSPC when the file system is full.
        """
        whole_end = end - end % LARGE_PAGE_BYTES
        if self._refused or begin == whole_end:
            return None
        position = begin
        while position < whole_end:
            until = position + LARGE_PAGE_BYTES if self._slow else whole_end
            if not self._collapse(position, until):
                return None
            position = until
        if end > whole_end:
            os.posix_fallocate(self._fd, whole_end, end - whole_end)
        return self._view[begin:end]

    def _collapse(self, begin: int, end: int) -> bool:
        """Make large pages of a range; False if the kernel gives none."""
        began_s = time.perf_counter()
        if self._slow:
            _clear_a_free_page()
        for position in range(begin, end, LARGE_PAGE_BYTES):
            os.pwrite(self._fd, b"\0", position)  # a range with nothing in it is not collapsed
        if c_library().madvise(self._address + begin, end - begin, _COLLAPSE) != 0:
            # An old kernel, or no memory in one piece: it would say so each time. EAGAIN is a race lost, no more.
            self._refused = ctypes.get_errno() != errno.EAGAIN
            return False
        took_s = time.perf_counter() - began_s
        self._slow = self._gently or took_s > _SLOW_S * ((end - begin) // LARGE_PAGE_BYTES)
        return True

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._view.release()
        self._mapping.close()


def _clear_a_free_page() -> None:
    """Have the kernel clear a large page that is free, in a way that other threads can interrupt."""
    with (
        contextlib.suppress(OSError),  # a kernel without them will say so when it is asked for one that matters
        mmap.mmap(-1, 2 * LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory,
    ):
        memory.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.c_char.from_buffer(memory)
        offset = -ctypes.addressof(start) % LARGE_PAGE_BYTES
        del start  # a mapping with views cannot be closed
        memory[offset] = 1


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
