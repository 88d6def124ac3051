"""Large pages: made on request, promised only when they are there, and never needed for a copy to be right."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.memory import large_pages, mapping
from trims.memory.large_pages import LargePages, why_no_large_pages
from trims.memory.mapping import LARGE_PAGE_BYTES, FileMapping
from trims.tiers.transfer import copy

if TYPE_CHECKING:
    from collections.abc import Iterator

NBYTES = 3 * LARGE_PAGE_BYTES + 5 * 4096 + 7
SHM = Path("/dev/shm")


class RefusingKernel:
    """A C library whose madvise always fails."""

    def __init__(self, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self._code = code
        self._true = mapping.c_library()
        monkeypatch.setattr(large_pages, "c_library", lambda: self)
        monkeypatch.setattr(large_pages.ctypes, "get_errno", lambda: code)

    def madvise(self, _address: int, _nbytes: int, _advice: int) -> int:
        self.asked += 1
        return -1


@pytest.fixture
def segment() -> Iterator[int]:
    with tempfile.TemporaryFile(dir=SHM) as file:
        file.truncate(NBYTES)
        yield file.fileno()


@pytest.fixture
def source() -> Iterator[tuple[int, bytes]]:
    content = os.urandom(1 << 16) * (NBYTES // (1 << 16)) + b"end of it"
    content = content.ljust(NBYTES, b"\1")
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.fileno(), content


def large_kib() -> int:
    """Return the KiB of shared memory that this process has mapped with large pages."""
    text = Path("/proc/self/smaps").read_text()
    return sum(int(kib) for kib in re.findall(r"^ShmemPmdMapped: +(\d+) kB", text, re.MULTILINE))


def needs_large_pages() -> None:
    if why := why_no_large_pages(SHM):
        pytest.skip(f"this kernel gives no large pages: {why}")


@pytest.mark.large_pages
def test_what_is_reserved_lies_in_large_pages_and_a_mapping_shows_it(segment: int) -> None:
    needs_large_pages()
    before = large_kib()
    pages = LargePages(segment, NBYTES)
    room = pages.reserve(0, NBYTES)
    assert room is not None
    room[:] = bytes([7]) * NBYTES
    room.release()
    pages.close()
    assert large_kib() == before
    reader = FileMapping(segment, NBYTES, align=True)
    with reader.view() as data:
        assert data == bytes([7]) * NBYTES
        assert large_kib() - before == 3 * LARGE_PAGE_BYTES >> 10
    reader.close()


@pytest.mark.large_pages
def test_a_copy_into_large_pages_is_a_copy(segment: int, source: tuple[int, bytes]) -> None:
    needs_large_pages()
    pages = LargePages(segment, NBYTES)
    copy(source[0], segment, NBYTES, pages=pages)
    pages.close()
    assert os.pread(segment, NBYTES, 0) == source[1]


@pytest.mark.parametrize(("code", "asked"), [(errno.EINVAL, 1), (errno.ENOMEM, 1), (errno.EAGAIN, 2)])
def test_a_kernel_that_refuses_is_believed_unless_it_says_to_try_again(
    segment: int, code: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = RefusingKernel(code, monkeypatch)
    pages = LargePages(segment, NBYTES)
    assert [pages.reserve(0, LARGE_PAGE_BYTES), pages.reserve(LARGE_PAGE_BYTES, NBYTES)] == [None, None]
    pages.close()
    assert kernel.asked == asked


def test_without_large_pages_the_copy_is_the_same(
    segment: int, source: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    RefusingKernel(errno.EINVAL, monkeypatch)
    pages = LargePages(segment, NBYTES)
    copy(source[0], segment, NBYTES, pages=pages)
    pages.close()
    assert os.pread(segment, NBYTES, 0) == source[1]


def test_a_range_smaller_than_a_large_page_is_not_promised(segment: int) -> None:
    pages = LargePages(segment, NBYTES)
    assert pages.reserve(3 * LARGE_PAGE_BYTES, NBYTES) is None
    pages.close()
    pages.close()


def test_the_reason_for_no_large_pages_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    RefusingKernel(errno.EINVAL, monkeypatch)
    assert "Invalid argument" in why_no_large_pages(SHM)


@pytest.mark.large_pages
def test_a_large_page_that_was_slow_has_the_next_ones_made_gently(
    segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_large_pages()
    cleared: list[float] = []
    now = [0.0]
    takes_s = [5e-3]

    def clock() -> float:
        now[0] += takes_s[0] / 2
        return now[0]

    monkeypatch.setattr(large_pages.time, "perf_counter", clock)
    monkeypatch.setattr(large_pages, "_clear_a_free_page", lambda: cleared.append(now[0]))
    pages = LargePages(segment, NBYTES)
    for number in range(3):
        if number == 2:
            takes_s[0] = 0.0
        room = pages.reserve(number * LARGE_PAGE_BYTES, (number + 1) * LARGE_PAGE_BYTES)
        assert room is not None
        room.release()
    assert len(cleared) == 2, "not before the first"
    assert not pages._slow, "the last was quick"
    pages.close()


@pytest.mark.large_pages
def test_what_is_made_gently_is_as_large_and_as_empty(segment: int) -> None:
    needs_large_pages()
    before = large_kib()
    pages = LargePages(segment, NBYTES, gently=True)
    room = pages.reserve(0, NBYTES)
    assert room is not None
    assert bytes(room) == bytes(NBYTES)
    assert large_kib() - before == 3 * LARGE_PAGE_BYTES >> 10
    room.release()
    pages.close()
