"""Taking a file's memory out from under its mappings and putting it back later, at the same addresses.

A mapped page stays in memory although its file is removed. So a process that holds a model ahead of need unmaps the
file, wherever it is mapped in this process, and keeps only the addresses. Pages of copy-on-write mappings that were
written are kept as copies. Reading a parked address kills the process: the caller makes sure that nothing reads.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from array import array
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import ClosedError, NotSupportedError
from trims.memory.mapping import FIXED, NO_RESERVE, POPULATE, c_library, checked

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = mmap.PAGESIZE
#: Bits of an entry in /proc/PID/pagemap: the page is in memory, swapped out, or of a file or shared memory.
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
#: Text in the kernel's list of mappings: anonymous memory that cannot be accessed.
_RESERVED = b" ---p 00000000 00:00 0"
_PROTECTIONS = (("r", mmap.PROT_READ), ("w", mmap.PROT_WRITE), ("x", mmap.PROT_EXEC))


class _Span(NamedTuple):
    """One mapping of the kernel's list."""

    begin: int
    end: int
    permissions: str
    offset: int
    identity: tuple[int, int]

    @property
    def is_private(self) -> bool:
        return self.permissions[3] == "p"


class SuspendedMapping:
    """Mappings of one file in this process, all taken away at once.

    Args:
        identity: Device and inode of the file.

    Raises:
        NotSupportedError: The file is not mapped here, by the kernel's list.
        OSError: The kernel refused.
    """

    def __init__(self, identity: tuple[int, int]) -> None:
        self._spans = [span for span in _spans() if span.identity == identity]
        if not self._spans:
            raise NotSupportedError("the kernel does not tell where the weights are mapped, so they cannot be parked")
        self._written = [page for span in self._spans if span.is_private for page in _written(span)]
        # Python's own mappings hold a descriptor each, and so does what maps by itself: they keep the memory, too.
        self._descriptors = [fd for fd in _descriptors() if _identity(fd) == identity]
        for span in self._spans:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED | NO_RESERVE
            checked(c_library().mmap(span.begin, span.end - span.begin, 0, flags, -1, 0))
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._nothing = _identity(nothing)
        for each in self._descriptors:
            os.dup2(nothing, each, inheritable=False)
        os.close(nothing)

    def restore(self, fd: int, *, populate: bool = False) -> None:
        """Map the file again where it was; written pages have what was written.

        Args:
            fd: Descriptor of the same file, open for reading.
            populate: Whether the next reader is to meet no page faults. For files in memory: others would be read.

        Raises:
            ClosedError: Some of the addresses were given up meanwhile.
            OSError: The kernel refused; the process cannot read the weights any more.
        """
        if not _all_reserved(self._spans):
            raise ClosedError("memory of parked weights was given up meanwhile; open the model again")
        for span in self._spans:
            protection = sum(flag for letter, flag in _PROTECTIONS if letter in span.permissions)
            # A copy-on-write mapping is never populated: that would copy all its pages.
            shared = mmap.MAP_SHARED | (POPULATE if populate else 0)
            flags = FIXED | (mmap.MAP_PRIVATE if span.is_private else shared)
            checked(c_library().mmap(span.begin, span.end - span.begin, protection, flags, fd, span.offset))
        for each in self._descriptors:
            if _identity(each) == self._nothing:  # else its owner has closed it, and another one has the number
                os.dup2(fd, each, inheritable=False)
        for address, data in self._written:
            ctypes.memmove(address, data, len(data))
        self._written.clear()


def _spans() -> Iterator[_Span]:
    with open("/proc/self/maps", errors="surrogateescape") as file:
        for line in file:
            addresses, permissions, offset, device, inode = line.split(maxsplit=5)[:5]
            begin, end = (int(part, 16) for part in addresses.split("-"))
            major, minor = (int(part, 16) for part in device.split(":"))
            yield _Span(begin, end, permissions, int(offset, 16), (os.makedev(major, minor), int(inode)))


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _identity(fd: int) -> tuple[int, int] | None:
    """Return device and inode; None if it is closed, as that of the listing itself is."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _written(span: _Span) -> Iterator[tuple[int, bytes]]:
    """Yield pages of a copy-on-write mapping that are not the file's any more, and their addresses."""
    count = (span.end - span.begin) // _PAGE
    entries = array("Q")
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        entries.frombytes(os.pread(file.fileno(), count * 8, span.begin // _PAGE * 8))
    if len(entries) != count:
        raise OSError(f"/proc/self/pagemap tells of {len(entries)} pages instead of {count}")
    for index, entry in enumerate(entries):
        if entry & _SWAPPED or (entry & _PRESENT and not entry & _OF_FILE):
            address = span.begin + index * _PAGE
            yield address, ctypes.string_at(address, _PAGE)


def _all_reserved(wanted: list[_Span]) -> bool:
    """Return whether the suspended addresses are still reserved: anonymous memory that cannot be accessed."""
    with open("/proc/self/maps", "rb") as file:
        lines = file.read().splitlines()
    found = [line.partition(b" ")[0].split(b"-") for line in lines if _RESERVED in line]  # quickly: a request waits
    reserved = [(int(begin, 16), int(end, 16)) for begin, end in found]
    return all(_covers(reserved, span.begin, span.end) for span in wanted)


def _covers(reserved: list[tuple[int, int]], begin: int, end: int) -> bool:
    for first, last in reserved:  # in the order of their addresses
        if first <= begin < last:
            begin = last
        if begin >= end:
            return True
    return False
