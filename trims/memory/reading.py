"""Reading a file in chunks: through the page cache, or around it where that is measured to be faster.

Pages that are cached already are never read around the cache; otherwise the first chunks are read both ways and the
faster way reads the rest.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass, field

from trims.core.errors import ImageError

#: Bytes that one system call copies out of the page cache. A kernel without preemption copies all of it before any
#: other thread has that processor: 8 MiB delay an answer by 4 ms.
CALL_BYTES = 512 << 10
_PROBE_CHUNKS = 4
_BLOCK_BYTES = 4096


@dataclass(slots=True)
class Source:
    """A file to read, with a second descriptor that goes around the page cache where that is possible and wise."""

    fd: int
    direct_fd: int = -1
    call_bytes: int = CALL_BYTES
    refused: bool = False
    spent_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    read_chunks: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})

    @classmethod
    def open(cls, fd: int, nbytes: int, chunk_bytes: int, call_bytes: int = CALL_BYTES) -> Source:
        """Open a source for the first `nbytes` bytes of a file, to be read in chunks of that size. `close` it."""
        return cls(fd, _open_direct(fd, nbytes, chunk_bytes), call_bytes)

    def use_direct(self, chunk: int) -> bool:
        """Return whether to read this chunk around the cache: alternate while probing, then the faster way."""
        if self.direct_fd < 0 or self.refused:
            return False
        if min(self.read_chunks.values()) < _PROBE_CHUNKS // 2:
            return bool(chunk % 2)
        return self.spent_s[True] / self.read_chunks[True] < self.spent_s[False] / self.read_chunks[False]

    def record(self, direct: bool, seconds: float) -> None:
        """Note the seconds that a chunk took."""
        self.spent_s[direct] += seconds
        self.read_chunks[direct] += 1

    def read(self, room: memoryview, offset: int, *, direct: bool = False) -> None:
        """Fill `room` with the bytes at the offset; for `direct`, everything is a multiple of the block.

        Raises ImageError if the file ends before, or its disk cannot read it.
        """
        if direct and self._around(room, offset):
            return
        read_all(self.fd, room, offset, self.call_bytes)

    def _around(self, room: memoryview, offset: int) -> bool:
        """Read around the cache.

        Return False, for good, if the kernel cannot do so into this memory (it may be pinned).
        """
        try:
            done = os.preadv(self.direct_fd, [room], offset)
        except OSError as error:
            if error.errno not in (errno.EFAULT, errno.EINVAL):
                raise ImageError(f"the source cannot be read at {offset} bytes: {error}") from error
            self.refused = True
            return False
        if done < len(room):
            with room[done:] as rest:
                read_all(self.fd, rest, offset + done)
        return True

    def close(self) -> None:
        """Close the second descriptor; the first is the caller's."""
        if self.direct_fd >= 0:
            os.close(self.direct_fd)
            self.direct_fd = -1


def read_all(fd: int, room: memoryview, offset: int, call_bytes: int = CALL_BYTES) -> None:
    """Fill `room`. Raises ImageError if the file ends before, or its disk cannot read it."""
    try:
        done = read_up_to(fd, room, offset, call_bytes)
    except OSError as error:  # a failing source, not a failing target
        raise ImageError(f"the source cannot be read at {offset} bytes: {error}") from error
    if done < len(room):
        end = offset + len(room)
        raise ImageError(f"the source ends at {offset + done} bytes, {end} were expected: truncated?")


def read_up_to(fd: int, room: memoryview, offset: int, call_bytes: int = CALL_BYTES) -> int:
    """Fill `room` as far as the file goes. Return the bytes read. Raises OSError."""
    done = 0
    while done < len(room):
        with room[done : done + call_bytes] as part:
            got = os.preadv(fd, [part], offset + done)
        if got == 0:
            break
        done += got
    return done


def _open_direct(fd: int, nbytes: int, chunk_bytes: int) -> int:
    """Return a descriptor with O_DIRECT, or -1 where it would not help: cached already, small, or not supported."""
    if nbytes < _PROBE_CHUNKS * chunk_bytes or is_cached(fd, 0, nbytes):
        return -1
    try:
        direct_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:  # tmpfs before 6.6, network file systems: buffered reading is the only way
        return -1
    try:
        with mmap.mmap(-1, _BLOCK_BYTES) as room:  # page-aligned, which O_DIRECT asks for
            os.preadv(direct_fd, [room], 0)
    except OSError:
        os.close(direct_fd)
        return -1
    return direct_fd


def is_cached(fd: int, offset: int, nbytes: int, *, untold: bool = True) -> bool:
    """Return whether pages spread over a range are all in the page cache; `untold` if the file system cannot say."""
    buffer = bytearray(1)
    for part in range(8):
        try:
            os.preadv(fd, [buffer], offset + part * (nbytes - 1) // 7, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return untold
    return True
