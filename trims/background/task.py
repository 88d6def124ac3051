"""Tasks of a copier: put bytes together from files, hash them, or both: in order, a piece at a time, each read once.

A piece is small enough to stay in a processor's cache between reading, hashing and writing, and to take a tenth of a
millisecond: what it takes the processor from may have it back soon. Files are read and written by calls and never
through mappings, so one that is truncated meanwhile, or a target without room, is an error and no signal.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import blake3

from trims.memory.large_pages import LargePages
from trims.memory.mapping import LARGE_PAGE_BYTES
from trims.memory.reading import read_up_to
from trims.memory.row_sums import Sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PIECE_BYTES = 64 << 10
#: Zeros, written to places that no part covers.
_ZEROS = bytes(PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class Part:
    """A range of the whole that lies in a file.

    Attributes:
        begin: Where it begins in the whole.
        file: Number of its file.
        offset: Where it begins in that file.
    """

    begin: int
    nbytes: int
    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class Task:
    """Description of bytes to put together, hash, or both.

    Attributes:
        nbytes: Length of the whole.
        parts: What it is made of, in order of `begin`, without overlap; between them there are zeros.
        hashes: Names of the digests that are wanted of the whole: "blake3", "sha256", "checksum" (of an image).
        large_pages: The target is memory that may be had in large pages.
    """

    nbytes: int
    parts: Sequence[Part]
    hashes: tuple[str, ...] = ("blake3",)
    large_pages: bool = False

    @classmethod
    def of_file(cls, nbytes: int, hashes: tuple[str, ...] = ("blake3",), *, large_pages: bool = False) -> Task:
        """Return the task for the first `nbytes` bytes of one file."""
        return cls(nbytes, (Part(0, nbytes, 0, 0),), hashes, large_pages)


@dataclass(frozen=True, slots=True)
class Order:
    """A task with its descriptors.

    Attributes:
        files: Descriptors that may be read, by their number in the task.
        target: A descriptor that may be read and written, of the whole's length, all zeros; None to hash only.
    """

    task: Task
    files: Sequence[int]
    target: int | None = None


class SourceFailedError(Exception):
    """A file that is read from ended early, or cannot be read.

    Attributes:
        at: Offset up to which it could be read.
        errno: What the kernel said; None for a file that ended.
    """

    def __init__(self, file: int, at: int, errno: int | None) -> None:
        super().__init__(file, at, errno)
        self.file, self.at, self.errno = file, at, errno

    def __str__(self) -> str:
        if self.errno is None:
            return f"the source ends at {self.at} bytes, more were expected: truncated?"
        return f"the source cannot be read at {self.at} bytes: {os.strerror(self.errno)}"


class _Hasher(Protocol):
    def update(self, data: memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


_HASHERS: dict[str, Callable[[], _Hasher]] = {"blake3": blake3.blake3, "sha256": hashlib.sha256, "checksum": Sum}


class Running:
    """A task that is being done.

    Args:
        order: The task. The caller keeps its descriptors open until the end.
    """

    def __init__(self, order: Order) -> None:
        task, target = order.task, order.target
        self._task = task
        self._files = order.files
        self._target = target
        self._hashers: dict[str, _Hasher] = {name: _HASHERS[name]() for name in task.hashes}
        self._room = memoryview(bytearray(max(1, min(PIECE_BYTES, task.nbytes))))
        self._pages = LargePages(target, task.nbytes, gently=True) if target is not None and task.large_pages else None
        self._next_part = 0
        self.done_bytes = 0

    def advance(self) -> int:
        """Do one piece. Return the bytes done so far, all of them at the end.

        Raises SourceFailedError, OSError if the target cannot be written.
        """
        begin, end = self.done_bytes, min(self.done_bytes + PIECE_BYTES, self._task.nbytes)
        if self._pages is not None and begin % LARGE_PAGE_BYTES == 0 and begin < end:
            reserved = self._pages.reserve(begin, min(begin + LARGE_PAGE_BYTES, self._task.nbytes))
            if reserved is not None:
                reserved.release()
        with self._room[: end - begin] as piece:
            self._read(piece, begin, end)
            for hasher in self._hashers.values():
                hasher.update(piece)
            if self._target is not None:
                _write_all(self._target, piece, begin)
        self.done_bytes = end
        return end

    def digests(self) -> dict[str, str]:
        """Return the digests in hex, by name: of all bytes once all are done."""
        return {name: hasher.hexdigest() for name, hasher in self._hashers.items()}

    def close(self) -> None:
        """Let go of the target's memory. Idempotent."""
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _read(self, piece: memoryview, begin: int, end: int) -> None:
        """Read the bytes of the whole from `begin` to `end` into `piece`."""
        covered, parts = begin, self._task.parts
        while self._next_part < len(parts):
            part = parts[self._next_part]
            first, last = max(part.begin, begin), min(part.begin + part.nbytes, end)
            if first >= end:
                break
            if last > first:
                piece[covered - begin : first - begin] = _ZEROS[: first - covered]
                self._read_part(part, piece[first - begin : last - begin], part.offset + first - part.begin)
                covered = last
            if part.begin + part.nbytes > end:
                break
            self._next_part += 1
        piece[covered - begin :] = _ZEROS[: end - covered]

    def _read_part(self, part: Part, room: memoryview, offset: int) -> None:
        with room:
            try:
                got = read_up_to(self._files[part.file], room, offset)
            except OSError as error:
                raise SourceFailedError(part.file, offset, error.errno) from error
            if got < len(room):
                raise SourceFailedError(part.file, offset + got, None)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        with data[done:] as rest:
            done += os.pwrite(fd, rest, offset + done)
