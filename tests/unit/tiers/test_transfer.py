"""Copying between descriptors: every byte for every length, and an error that says whose fault it is."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.core.errors import ConversionError, ImageError
from trims.memory import reading
from trims.testing.tiers import an_image
from trims.tiers import transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KIB = 1 << 10


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight chunks of 64 KiB do what eight of 8 MiB do."""
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 64 * KIB)
    monkeypatch.setattr(transfer, "BUFFER_BYTES", 16 * KIB)


@pytest.fixture
def files(folder: Path) -> Iterator[Callable[[int], tuple[int, int, bytes]]]:
    """A file of random bytes and an empty one of the same length: (source, target, bytes)."""
    opened: list[int] = []

    def make(nbytes: int) -> tuple[int, int, bytes]:
        data = os.urandom(nbytes)
        (folder / "source").write_bytes(data)
        opened.append(os.open(folder / "source", os.O_RDONLY))
        opened.append(os.open(folder / "target", os.O_RDWR | os.O_CREAT))
        os.ftruncate(opened[-1], nbytes)
        return opened[-2], opened[-1], data

    yield make
    for fd in opened:
        os.close(fd)


LENGTHS = [1, 7, 4095, 4096, 4097, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 5 * 64 * KIB + 333, 8 * 64 * KIB]


@pytest.mark.parametrize("direct", [False, True], ids=["cached", "around the cache"])
@pytest.mark.parametrize("nbytes", LENGTHS)
def test_every_byte_arrives(
    nbytes: int, direct: bool, files: Callable[[int], tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, data = files(nbytes)
    if direct:
        os.fsync(source)
        monkeypatch.setattr(reading, "is_cached", lambda fd, offset, nbytes: False)
    transfer.copy(source, target, nbytes)
    assert os.pread(target, nbytes + 1, 0) == data
    assert transfer.digest_of(target, nbytes) == blake3.blake3(data).hexdigest()


def test_threads_of_the_daemon_do_as_well_as_ones_own(files: Callable[[int], tuple[int, int, bytes]]) -> None:
    source, target, data = files(8 * 64 * KIB)
    with ThreadPoolExecutor(3) as readers:
        transfer.copy(source, target, len(data), readers=readers)
    assert os.pread(target, len(data), 0) == data


def test_a_shorter_source_is_a_broken_image_that_says_where_it_ends(
    files: Callable[[int], tuple[int, int, bytes]],
) -> None:
    source, target, data = files(100_000)
    with pytest.raises(ImageError, match="ends at 100000 bytes, 131072 were expected: truncated"):
        transfer.copy(source, target, len(data) + 50_000)


def test_an_unreadable_source_is_a_broken_image(files: Callable[[int], tuple[int, int, bytes]], folder: Path) -> None:
    _, target, _ = files(1000)
    fd = os.open(folder, os.O_RDONLY)
    try:
        with pytest.raises(ImageError, match="the source cannot be read at 0 bytes"):
            transfer.copy(fd, target, 1000)
    finally:
        os.close(fd)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_a_failing_target_is_the_systems_own_error(
    code: int, files: Callable[[int], tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, data = files(300_000)

    def fails(*anything: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", fails)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        transfer.copy(source, target, len(data))
    assert caught.value.errno == code


def test_when_an_error_is_raised_no_thread_writes_any_more(
    files: Callable[[int], tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, data = files(8 * 64 * KIB)
    real, running = transfer._copy_in_the_kernel, []

    def one_fails(source_fd: int, target_fd: int, begin: int, end: int) -> None:
        running.append(begin)
        try:
            if begin == 64 * KIB:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(source_fd, target_fd, begin, end)
        finally:
            running.remove(begin)

    monkeypatch.setattr(transfer, "_copy_in_the_kernel", one_fails)
    with ThreadPoolExecutor(4) as readers, pytest.raises(OSError, match="No space"):
        transfer.copy(source, target, len(data), readers=readers)
    assert running == []


def test_a_cancelled_copy_stops_and_says_why(files: Callable[[int], tuple[int, int, bytes]]) -> None:
    source, target, data = files(8 * 64 * KIB)
    cancelled, seen = threading.Event(), []

    def on_progress(done: int) -> None:
        seen.append(done)
        cancelled.set()

    with (
        ThreadPoolExecutor(1) as readers,
        pytest.raises(ConversionError, match="the copy was stopped: the daemon is shutting"),
    ):
        transfer.copy(source, target, len(data), on_progress=on_progress, cancelled=cancelled, readers=readers)
    assert seen == [64 * KIB]
    assert os.pread(target, len(data), 0) == data[: 64 * KIB] + bytes(len(data) - 64 * KIB)


@pytest.mark.parametrize("nbytes", [1, 64 * KIB, 3 * 64 * KIB + 5])
def test_progress_only_rises_and_ends_at_the_total(nbytes: int, files: Callable[[int], tuple[int, int, bytes]]) -> None:
    source, target, data = files(nbytes)
    seen: list[int] = []
    transfer.copy(source, target, len(data), on_progress=seen.append)
    assert seen == sorted(set(seen))
    assert seen[-1] == nbytes


# -- around the cache, or through it -------------------------------------------------------------------------------


def ways(took_s: dict[bool, float], chunks: int = 12) -> list[bool]:
    """Which chunks are read around the cache, when each way takes so long."""
    source = reading.Source(fd=3, direct_fd=4)
    chosen = []
    for chunk in range(chunks):
        direct = source.use_direct(chunk)
        source.record(direct, took_s[direct])
        chosen.append(direct)
    return chosen


def test_the_first_chunks_try_both_ways_and_the_faster_reads_the_rest() -> None:
    assert ways({True: 1.0, False: 2.0}) == [False, True, False, True] + [True] * 8
    assert ways({True: 2.0, False: 1.0}) == [False, True, False, True] + [False] * 8


def test_without_a_second_descriptor_there_is_one_way() -> None:
    assert not any(reading.Source(fd=3).use_direct(chunk) for chunk in range(20))


def test_what_is_cached_or_small_is_never_read_around_the_cache(
    files: Callable[[int], tuple[int, int, bytes]],
) -> None:
    source, _, data = files(8 * 64 * KIB)
    os.pread(source, len(data), 0)
    assert reading._open_direct(source, len(data), 64 * KIB) == -1
    small, _, data = files(3 * 64 * KIB)
    assert reading._open_direct(small, len(data), 64 * KIB) == -1


@pytest.mark.parametrize("code", [errno.EFAULT, errno.EINVAL])
def test_memory_that_cannot_be_read_into_around_the_cache_is_read_into_through_it(
    code: int, files: Callable[[int], tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source_fd, _, data = files(8 * 64 * KIB)
    source = reading.Source(source_fd, os.dup(source_fd))
    real = os.preadv

    def refuses(fd: int, rooms: list[memoryview], offset: int) -> int:
        if fd == source.direct_fd:
            raise OSError(code, os.strerror(code))
        return real(fd, rooms, offset)

    monkeypatch.setattr(os, "preadv", refuses)
    room = bytearray(64 * KIB)
    source.read(memoryview(room), 64 * KIB, direct=True)
    assert bytes(room) == data[64 * KIB : 128 * KIB]
    assert not any(source.use_direct(chunk) for chunk in range(20)), "once is enough"
    source.close()


def test_no_system_call_keeps_a_processor_for_more_than_a_fraction_of_a_millisecond(
    files: Callable[[int], tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 2 * reading.CALL_BYTES + 5
    source_fd, _, data = files(length)
    real, asked = os.preadv, []

    def counts(fd: int, rooms: list[memoryview], offset: int) -> int:
        asked.append(len(rooms[0]))
        return real(fd, rooms, offset)

    monkeypatch.setattr(os, "preadv", counts)
    room = bytearray(length + 7)
    assert reading.read_up_to(source_fd, memoryview(room), 0) == length
    assert bytes(room[:length]) == data
    assert max(asked) == reading.CALL_BYTES


def test_a_file_system_without_such_reads_is_read_the_plain_way(
    files: Callable[[int], tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, data = files(8 * 64 * KIB)
    monkeypatch.setattr(reading, "is_cached", lambda fd, offset, nbytes: False)
    real = os.open

    def refuses(path: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuses)
        transfer.copy(source, target, len(data))
    assert os.pread(target, len(data), 0) == data


def test_a_file_that_is_no_image_is_told_as_such_though_views_of_it_are_alive(folder: Path) -> None:
    """Errors are found with views in hand; the report must not be that the mapping cannot be closed."""
    data = bytearray(an_image(1000))
    data[-1:] = b""
    (folder / "short").write_bytes(data)
    fd = os.open(folder / "short", os.O_RDONLY)
    try:
        with pytest.raises(ImageError):
            transfer.check_bytes(fd, len(data))
    finally:
        os.close(fd)
