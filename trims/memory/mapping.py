"""Mapping a file where the processor can use large pages. Standard library only; both halves of sharing use it.

A large page can be mapped as one only at an address that is aligned as the page is in the file. The kernel sees to
that on its own where a file system was mounted for large pages, and not in /dev/shm. Not covered: making the pages
large (`large_pages`).
"""

from __future__ import annotations

import mmap
import weakref

from trims.core.errors import ClosedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Sequence
    from typing import Any

    from trims.memory.pages import Pages

#: Size of a large page on x86-64, and on arm64 with 4 KiB pages. Elsewhere mappings are merely not aligned well.
LARGE_PAGE_BYTES = 2 << 20
#: Least length worth aligning, in bytes: below, aligning costs as much as it saves.
_WORTH_BYTES = 16 << 20
FIXED, NO_RESERVE, POPULATE = 0x10, 0x4000, 0x8000


class FileMapping:
    """The first bytes of a file in memory, until `close` was called and the last view is gone.

    Args:
        fd: Open for what is asked; the mapping does not need it afterwards.
        nbytes: Length, at least 1, and not more than the file has.
        write: Writes go to the file.
        private: Copy-on-write: writable, and no other process sees it.
        align: Whether to align; None where it pays.
        pages: Pages of other files to map over parts of it. Not with `write`: they are read-only, or private.
        on_unmap: Called once when the memory is gone; from any thread, not at the end of the process.

    Raises:
        OSError: The kernel refused.
    """

    def __init__(
        self,
        fd: int,
        nbytes: int,
        *,
        write: bool = False,
        private: bool = False,
        align: bool | None = None,
        pages: Sequence[Pages] = (),
        on_unmap: Callable[[], None] | None = None,
    ) -> None:
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if write or private else 0)
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        self._writable = write or private
        self._nbytes = nbytes
        #: The memory, if another file can be put under it.
        self._exchanged: Callable[[], ctypes.Array[ctypes.c_ubyte] | None] = lambda: None
        #: Object that the views keep alive; the memory goes with it.
        self._owner: mmap.mmap | ctypes.Array[ctypes.c_ubyte] | None
        if pages or (nbytes >= _WORTH_BYTES if align is None else align):
            self._owner = _map_aligned(fd, nbytes, (prot, flags), pages, on_unmap)
            if not (write or private or pages):
                self._exchanged = weakref.ref(self._owner)
        else:
            self._owner = mmap.mmap(fd, nbytes, flags=flags, prot=prot)
            if on_unmap is not None:
                weakref.finalize(self._owner, on_unmap).atexit = False

    @property
    def address(self) -> int:
        """Return the address where an aligned mapping begins. Raises ClosedError."""
        import ctypes

        if self._owner is None or isinstance(self._owner, mmap.mmap):
            raise ClosedError("only an open, aligned mapping has an address")
        return ctypes.addressof(self._owner)

    def view(self) -> memoryview:
        """Return all bytes; read-only unless the mapping was made to be written. Raises ClosedError."""
        if self._owner is None:
            raise ClosedError("this mapping is closed")
        whole = memoryview(self._owner)
        if isinstance(self._owner, mmap.mmap):
            return whole
        return whole.cast("B") if self._writable else whole.cast("B").toreadonly()

    @property
    def can_exchange(self) -> bool:
        """Return whether `exchange` would do anything now."""
        return self._exchanged() is not None

    def exchange(self, fd: int) -> bool:
        """Map another file with the same bytes instead, at the same addresses, in one step of the kernel.

        A reader sees the old pages or the new ones; its views stay valid. Possible until the last view is gone, also
        after `close`.

        Args:
            fd: Open for reading; the mapping does not need it afterwards. The file has the same bytes, and not fewer:
                reading pages that a file does not have kills the process.

        Returns:
            False if this mapping cannot be exchanged: it can be written, is not aligned, consists of several files, or
            is unmapped.

        Raises:
            OSError: The kernel refused.
        """
        memory = self._exchanged()  # held until the end: it would else be unmapped, and its addresses be another's
        if memory is None:
            return False
        import ctypes

        how = (mmap.PROT_READ, mmap.MAP_SHARED | FIXED | POPULATE)
        checked(c_library().mmap(ctypes.addressof(memory), self._nbytes, *how, fd, 0))
        return True

    def close(self) -> None:
        """Unmap now if no view is left; otherwise the end of the last view unmaps. Idempotent."""
        owner, self._owner = self._owner, None
        if isinstance(owner, mmap.mmap):
            try:
                owner.close()
            except BufferError:
                return


def _map_aligned(
    fd: int, nbytes: int, how: tuple[int, int], pages: Sequence[Pages], on_unmap: Callable[[], None] | None
) -> ctypes.Array[ctypes.c_ubyte]:
    import ctypes

    libc = c_library()
    prot, flags = how
    length = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    span = length + LARGE_PAGE_BYTES
    room = checked(libc.mmap(None, span, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE, -1, 0))
    start = -(-room // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    try:
        checked(libc.mmap(start, nbytes, prot, flags | FIXED, fd, 0))
        for other, begin, count, offset in pages:
            checked(libc.mmap(start + begin, count, prot, flags | FIXED, other, offset))
    except OSError:
        libc.munmap(room, span)
        raise
    if start > room:
        libc.munmap(room, start - room)
    libc.munmap(start + length, room + span - start - length)
    owner = (ctypes.c_ubyte * nbytes).from_address(start)
    weakref.finalize(owner, _end, start, length, on_unmap).atexit = False
    return owner


def _end(start: int, length: int, on_unmap: Callable[[], None] | None) -> None:
    c_library().munmap(start, length)
    if on_unmap is not None:
        on_unmap()


_c_library: Any = None


def c_library() -> Any:
    """Return the C library, with calls declared that the standard library lacks. They release the interpreter lock."""
    global _c_library  # noqa: PLW0603 - a cache
    if _c_library is None:
        import ctypes

        found = ctypes.CDLL(None, use_errno=True)
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        found.mmap.restype = address
        found.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
        found.munmap.argtypes = (address, size)
        found.madvise.argtypes = (address, size, number)
        _c_library = found
    return _c_library


def checked(address: int | None) -> int:
    """Return the address that `mmap` returned. Raises OSError if it failed."""
    import ctypes
    import os

    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return address
