"""Pages that a predictor writes until its first answer, which later forks of its template copy ahead of a request.

A fork shares all pages with its template, and the kernel copies each one when it is first written. Until its first
answer a predictor writes a thousand of them and more: counts of references to the code that runs, free memory of
allocators, data of libraries. Each is a fault of the processor. A fault takes ten times as long in a virtual machine
whose host has taken free memory back.

Forks of one template write nearly the same pages, because all lies at the same addresses. So the first predictor of
each model records which ones it wrote, and the template's next spares have them copied before a request comes. The
method is record and prefetch, of Ustiugov et al., "Benchmarking, Analysis, and Optimization of Serverless Function
Snapshots", ASPLOS 2021. Only the numbers of pages are sent, never what is in them, and only to forks of the same
template, which tenants do not share.

A list of pages is sent as pairs of numbers: how many pages to pass over, and how many are meant then.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any

from trims.core.errors import BadMessageError
from trims.memory.mapping import c_library

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

#: Pages that are copied ahead for one spare; what a longer record has came with imports, which templates learn.
MOST_PAGES = 4096
#: Numbers in one list, which is a part of a message.
MOST_NUMBERS = 2 * MOST_PAGES
#: Models whose written pages one template's forks copy ahead, at most.
_MOST_DEPLOYMENTS = 1024
_LAST_PAGE = (1 << 47) // mmap.PAGESIZE
#: Bits of an entry of /proc/self/pagemap: the page is there, and no other process maps it.
_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56
_ENTRY_BYTES = 8
#: Linux 5.14; older kernels refuse it.
_POPULATE_WRITE = 23


class Record:
    """Record of the pages that became this process's own since one time. Only Linux reports them."""

    def __init__(self, places: Sequence[tuple[int, int]], before: Any) -> None:
        self._places = places
        self._before = before

    @classmethod
    def begin(cls) -> Record | None:
        """Begin a record. Return None without numpy in this process, or if the kernel does not list pages."""
        if "numpy" not in sys.modules:
            return None
        try:
            places = list(_places())
            return cls(places, _own(places))
        except (OSError, ValueError):
            return None

    def end(self) -> list[int]:
        """Pages that became this process's own since; empty if they are more than are copied ahead."""
        import numpy as np

        try:
            found = np.setdiff1d(_own(self._places), self._before, assume_unique=True).tolist()
        except (OSError, ValueError):
            return []
        return page_ranges(found) if len(found) <= MOST_PAGES else []


def _places() -> Iterable[tuple[int, int]]:
    """Memory that this process may write and shares with no other on purpose: first pages, and those behind the last.

    What is mapped later lies elsewhere in each process, so it is not asked for.
    """
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        for line in maps:
            place, how = line.split(maxsplit=2)[:2]
            if how == "rw-p":
                begin, end = (int(address, 16) // mmap.PAGESIZE for address in place.split("-"))
                yield begin, end


def _own(places: Iterable[tuple[int, int]]) -> Any:
    """Pages that no other process maps, sorted; a numpy array."""
    import numpy as np

    wanted, found = np.uint64(_PRESENT | _EXCLUSIVE), [np.empty(0, np.int64)]
    fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for begin, end in places:
            data = os.pread(fd, (end - begin) * _ENTRY_BYTES, begin * _ENTRY_BYTES)
            entries = np.frombuffer(data, np.uint64)
            found.append(np.flatnonzero((entries & wanted) == wanted) + begin)
    finally:
        os.close(fd)
    return np.concatenate(found)


def copy_ahead(pages: Sequence[int]) -> int:
    """Copy pages for this process alone; returns how many. Pages that are not mapped any more are left out."""
    madvise, copied = c_library().madvise, 0
    for begin, count in _runs(pages):
        # A call of the kernel and no write: it refuses what is not there, where a write would end the process.
        if madvise(ctypes.c_void_p(begin * mmap.PAGESIZE), count * mmap.PAGESIZE, _POPULATE_WRITE) == 0:
            copied += count
    return copied


def page_ranges(pages: Iterable[int]) -> list[int]:
    """Encode sorted page numbers as a message has them: pairs of pages to pass over and pages that are meant."""
    found: list[int] = []
    end = 0
    for page in pages:
        if found and page == end:
            found[-1] += 1
        else:
            found += (page - end, 1)
        end = page + 1
    return found


def _runs(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    """First pages and how many."""
    end = 0
    for gap, count in zip(numbers[::2], numbers[1::2], strict=True):
        yield end + gap, count
        end += gap + count


def check_pages(numbers: Any) -> None:
    """Raise BadMessageError unless this is a list as `page_ranges` makes it, whatever a predictor's process sends."""
    listed = isinstance(numbers, list) and len(numbers) <= MOST_NUMBERS and len(numbers) % 2 == 0
    if not listed or not all(type(number) is int and 0 <= number <= _LAST_PAGE for number in numbers):
        raise BadMessageError("pages that are no list of numbers of pages")


class WrittenPages:
    """Pages that the first predictor of each model wrote, for forks of one template to copy ahead."""

    def __init__(self) -> None:
        self._pages: set[int] = set()
        self._deployments: set[Hashable] = set()

    def lacks(self, deployment: Hashable) -> bool:
        """Return whether a predictor of this deployment should record what it writes."""
        return (
            deployment not in self._deployments
            and len(self._deployments) < _MOST_DEPLOYMENTS
            and len(self._pages) < MOST_PAGES
        )

    def learn(self, deployment: Hashable, numbers: Sequence[int]) -> None:
        """Store the page numbers that a worker of this deployment reported; ignore them above MOST_PAGES."""
        self._deployments.add(deployment)
        if sum(numbers[1::2]) > MOST_PAGES:
            return
        pages = self._pages.union(*(range(begin, begin + count) for begin, count in _runs(numbers)))
        if len(pages) <= MOST_PAGES:
            self._pages = pages

    def page_ranges(self) -> list[int]:
        """Return the numbers of the pages, as a message to a spare has them."""
        return page_ranges(sorted(self._pages))
