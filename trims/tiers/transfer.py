"""Moving the bytes of an image between two descriptors, and hashing them.

A target whose memory is reserved in large pages is read into directly. Any other is written through the file, so that
a full one is an error and never a SIGBUS: inside the kernel, one system call a chunk, because the threads that
answer clients need the interpreter lock. Whether the source is read around the page cache is decided by measurement
(`reading`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import blake3

from trims.core.errors import ArtifactError, ConversionError, ImageError
from trims.image.check_in_child import check_apart, check_here
from trims.image.peek import CHECK_HERE_BYTES, described_bytes
from trims.memory.mapping import FileMapping
from trims.memory.reading import Source, read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.memory.large_pages import LargePages

CHUNK_BYTES = 8 << 20
#: Buffer for reads around the page cache; stays in a second-level cache on its way out.
BUFFER_BYTES = 256 << 10


def default_threads() -> int:
    """Return the number of reader threads: one per processor, at least 2 (one waits while one copies), at most 8."""
    return max(2, min(8, len(os.sched_getaffinity(0))))


def digest_of(fd: int, nbytes: int) -> str:
    """Return blake3 of the file's first `nbytes` bytes, in hex, as `b3sum` prints it. Releases the interpreter lock."""
    with contextlib.closing(FileMapping(fd, nbytes)) as mapping, mapping.view() as data:
        return blake3.blake3(data, max_threads=default_threads()).hexdigest()


def digest_by_reading(fd: int, nbytes: int) -> str:
    """Return the digest of a file that other processes may touch. Raises ImageError if it is cut short or unreadable.

    The file is read and not mapped: reading beyond its end through a mapping would kill the process (SIGBUS).
    """
    hasher = blake3.blake3(max_threads=default_threads())
    room = bytearray(min(CHUNK_BYTES, nbytes))
    with memoryview(room) as buffer:
        for begin in range(0, nbytes, CHUNK_BYTES):
            with buffer[: min(CHUNK_BYTES, nbytes - begin)] as part:
                read_all(fd, part, begin)
                hasher.update(part)
    return hasher.hexdigest()


def check_bytes(fd: int, nbytes: int) -> None:
    """Check that a file is an image in every respect: in a child process if parsing it here would delay others.

    The file is read and never mapped, so it may be truncated meanwhile. Raises ImageError naming the first thing that
    is wrong, OSError if the file cannot be read, ConversionError or CapacityError if a child was needed and failed.
    """
    try:
        large = described_bytes(fd, nbytes, "image") > CHECK_HERE_BYTES
    except ArtifactError as error:
        raise ImageError(str(error)) from error
    if large:
        check_apart(fd, nbytes)
    else:
        check_here(fd, nbytes)


def copy(
    source_fd: int,
    target_fd: int,
    nbytes: int,
    *,
    on_progress: Callable[[int], None] | None = None,
    cancelled: threading.Event | None = None,
    why: str = "the daemon is shutting down",
    readers: ThreadPoolExecutor | None = None,
    pages: LargePages | None = None,
) -> None:
    """Copy the first `nbytes` bytes of one file into another.

    Args:
        source_fd: Readable. If it turns out shorter, or its disk cannot read it any more, ImageError.
        target_fd: Writable, at least `nbytes` long.
        on_progress: Called with the bytes done so far, from reader threads.
        cancelled: When set, the copy stops with ConversionError.
        why: What that error says of the reason.
        readers: Threads to copy with, shared by all copies of a daemon, so that no more run than there are
            processors; None for threads of this copy alone.
        pages: Large pages of the target, where it is memory that may be had in them.

    Raises:
        OSError: ENOSPC when the target is full.
    """
    source = Source.open(source_fd, nbytes, CHUNK_BYTES)
    done, lock = [0], threading.Lock()

    def copy_chunk(chunk: int) -> None:
        if cancelled is not None and cancelled.is_set():
            raise ConversionError(f"the copy was stopped: {why}")
        begin, end = chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, nbytes)
        direct = source.use_direct(chunk) and end - begin == CHUNK_BYTES
        started = time.perf_counter()
        room = None if pages is None else pages.reserve(begin, end)
        if room is not None:
            with room:
                source.read(room, begin, direct=direct)
        elif direct:
            _copy_around_the_cache(source.direct_fd, target_fd, begin, end)
        else:
            _copy_in_the_kernel(source_fd, target_fd, begin, end)
        with lock:
            source.record(direct, time.perf_counter() - started)
            done[0] += end - begin
            if on_progress is not None:
                on_progress(done[0])

    chunks = -(-nbytes // CHUNK_BYTES)
    try:
        if readers is not None:
            _each(copy_chunk, chunks, readers)
        else:
            with ThreadPoolExecutor(default_threads(), thread_name_prefix="trims-copy") as own:
                _each(copy_chunk, chunks, own)
    finally:
        source.close()


def _each(work: Callable[[int], None], count: int, pool: ThreadPoolExecutor) -> None:
    """Run `work(0..count-1)`; the first error stops the rest and is raised when none runs any more."""
    futures = [pool.submit(work, number) for number in range(count)]
    try:
        for future in futures:
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures)
        raise


def _copy_in_the_kernel(source_fd: int, target_fd: int, begin: int, end: int) -> None:
    # sendfile writes at the target's own position, so each chunk opens the target for itself.
    own_fd = os.open(f"/proc/self/fd/{target_fd}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        position = os.lseek(own_fd, begin, os.SEEK_SET)
        while position < end:
            sent = _send(own_fd, source_fd, position, end - position)
            if sent == 0:
                raise ImageError(f"the source ends at {position} bytes, {end} were expected: truncated?")
            position += sent
    finally:
        os.close(own_fd)


def _send(target_fd: int, source_fd: int, position: int, count: int) -> int:
    try:
        return os.sendfile(target_fd, source_fd, position, count)
    except OSError:
        read_all(source_fd, memoryview(bytearray(1)), position)  # raises ImageError if it is the source's fault
        raise


def _copy_around_the_cache(source_fd: int, target_fd: int, begin: int, end: int) -> None:
    # An anonymous mapping is page-aligned, which O_DIRECT asks for.
    with mmap.mmap(-1, BUFFER_BYTES) as room, memoryview(room) as buffer:
        _copy_range(source_fd, target_fd, begin, end, buffer)


def _copy_range(source_fd: int, target_fd: int, begin: int, end: int, buffer: memoryview) -> None:
    for position in range(begin, end, len(buffer)):
        with buffer[: min(len(buffer), end - position)] as part:
            read_all(source_fd, part, position)
            _write_all(target_fd, part, position)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
