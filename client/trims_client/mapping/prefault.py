"""Prefault of weights in files: pages are mapped before they are read, in the order of the framework's reads.

A read of a page that is not mapped yet waits. If the file is not cached, the kernel reads some megabytes round that
page from the disk, and the next ones are asked for only after the answer; a library that reads all of a file by several
threads keeps the disk busier. So four threads map what comes next while the reader still builds its module and computes
with what is there. Where the file is cached, they save the reader most of its page faults.

Not covered: places in memory, whose pages are large and mapped quickly; reading ahead by the daemon, which knows only
the order of the file (`trims.tiers.reading`).
"""

from __future__ import annotations

import itertools
import mmap
import threading
import weakref
from typing import TYPE_CHECKING

from trims.memory.available import available_bytes
from trims.memory.mapping import c_library

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Number of threads: so many requests keep a disk busy; each thread waits for one most of its time.
_THREADS = 4
#: Bytes of one system call, which cannot be stopped. Smaller pieces would overlap: round each fault the kernel reads as
#: much as the device's read_ahead_kb says, often 128 KiB, on some cloud disks 8 MiB.
_PIECE_BYTES = 8 << 20
#: Least bytes worth mapping ahead: below, threads take longer than what they save.
_LEAST_BYTES = 16 << 20
#: Advice of <linux/mman.h>: map the pages for reading, as if each had been read. Since Linux 5.14.
_POPULATE_READ = 22


def map_ahead(ranges: Iterable[tuple[int, int]], owner: object) -> list[threading.Thread]:
    """Begin to map memory, in the background.

    Args:
        ranges: Address and bytes of each tensor, in the order of their use. Not more is mapped than half of the memory
            that is available.
        owner: Object whose end ends this. While it lives, the memory stays mapped; afterwards a call that has begun
            maps pages of what may have taken its place, and changes nothing.

    Returns:
        The threads, which nothing has to wait for; none if there is little to do.

    Raises:
        OSError: The kernel does not report how much memory is available.
        RuntimeError: No thread can be started.
    """
    pieces = list(_pieces(_joined(ranges), available_bytes() // 2))
    if sum(nbytes for _, nbytes in pieces) < _LEAST_BYTES:
        return []
    ended: list[object] = []  # no lock is needed here, nor held when the interpreter ends
    madvise, turns = c_library().madvise, itertools.count()

    def work(_told: object = weakref.ref(owner, ended.append)) -> None:
        while not ended and (turn := next(turns)) < len(pieces):
            if madvise(*pieces[turn], _POPULATE_READ):
                return  # an older kernel, a file that was truncated, or memory that is gone: reading shows which

    threads = [threading.Thread(target=work, name="trims-ahead", daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    return threads


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yield begin and end of whole pages; neighbours that follow each other are one."""
    begin = end = 0
    for address, nbytes in ranges:
        first = address // mmap.PAGESIZE * mmap.PAGESIZE
        last = -(-(address + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        if begin <= first <= end:
            end = max(end, last)
            continue
        if end > begin:
            yield begin, end
        begin, end = first, last
    if end > begin:
        yield begin, end


def _pieces(spans: Iterable[tuple[int, int]], most_bytes: int) -> Iterable[tuple[int, int]]:
    """Yield address and bytes of what one call maps."""
    for begin, end in spans:
        for at in range(begin, end, _PIECE_BYTES):
            if most_bytes <= 0:
                return
            nbytes = min(_PIECE_BYTES, end - at, most_bytes)
            most_bytes -= nbytes
            yield at, nbytes
