"""The kernel's cache of files: dropped before a start from disk, and looked at to see that it was."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PIECE = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def drop(paths: Iterable[str]) -> None:
    """Have the kernel forget the pages of files. What other processes have mapped or locked stays. Raises OSError."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # pages that are not written yet cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fill(paths: Iterable[str]) -> None:
    """Have the kernel keep the pages of files, by reading them. Raises OSError."""
    buffer = bytearray(_PIECE)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cached_share(paths: Iterable[str]) -> float:
    """Return the part of files' bytes that is in memory, from 0 to 1. Raises OSError."""
    cached = total = 0
    for path in paths:
        with open(path, "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes:
                pages = -(-nbytes // mmap.PAGESIZE)
                cached += _pages_in_memory(file.fileno(), nbytes, pages)
                total += pages
    return cached / total if total else 0.0


def _pages_in_memory(descriptor: int, nbytes: int, pages: int) -> int:
    with mmap.mmap(descriptor, nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        states = (ctypes.c_ubyte * pages)()
        begin = ctypes.c_ubyte.from_buffer(mapped)
        try:
            if _libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(nbytes), states):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            del begin
    return sum(state & 1 for state in states)
