"""Reading files in chunks: every byte, by the faster way, or an error that says where the file ends."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import ImageError
from trims.memory import reading
from trims.memory.reading import CALL_BYTES, Source, read_all, read_up_to

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = os.urandom(1 << 16) * 40


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("source")
    os.write(made, DATA)
    yield made
    os.close(made)


@pytest.mark.parametrize("length", [0, 1, CALL_BYTES - 1, CALL_BYTES, CALL_BYTES + 1, 2 * CALL_BYTES + 7])
def test_a_room_of_any_length_is_filled_and_nothing_beside_it(fd: int, length: int) -> None:
    room = bytearray(length + 2)
    read_all(fd, memoryview(room)[1:-1], 99)
    assert room == b"\0" + DATA[99 : 99 + length] + b"\0"


@given(st.integers(0, len(DATA) + 10), st.integers(0, 3000))
def test_reading_goes_as_far_as_the_file(offset: int, length: int) -> None:
    made = os.memfd_create("source")
    try:
        os.write(made, DATA)
        room = bytearray(length)
        done = read_up_to(made, memoryview(room), offset)
    finally:
        os.close(made)
    assert room[:done] == DATA[offset : offset + length]
    assert done == len(DATA[offset : offset + length])


def test_a_file_that_ends_early_says_where_and_where_it_should(fd: int) -> None:
    with pytest.raises(ImageError, match=rf"ends at {len(DATA)} bytes, {len(DATA) + 5} were expected: truncated\?"):
        read_all(fd, memoryview(bytearray(15)), len(DATA) - 10)


def test_a_disk_that_fails_is_told_with_the_place(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(ImageError, match=r"the source cannot be read at 7 bytes: .*Input/output error"):
        read_all(fd, memoryview(bytearray(1)), 7)


def test_both_ways_are_tried_and_then_the_faster_one_is_used() -> None:
    for direct_s, buffered_s, chosen in ((1.0, 2.0, True), (2.0, 1.0, False)):
        source = Source(fd=-1, direct_fd=99)
        for chunk in range(4):
            direct = source.use_direct(chunk)
            assert direct is bool(chunk % 2)
            source.record(direct, direct_s if direct else buffered_s)
        assert {source.use_direct(chunk) for chunk in range(4, 10)} == {chosen}


def test_without_a_second_descriptor_everything_goes_through_the_cache(fd: int) -> None:
    source = Source.open(fd, len(DATA), 1 << 16)
    source.close()
    assert source.direct_fd == -1
    assert not any(map(source.use_direct, range(8)))


@pytest.mark.parametrize("code", [errno.EFAULT, errno.EINVAL])
def test_memory_that_cannot_be_read_into_around_the_cache_is_filled_through_it(
    fd: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    preadv = os.preadv

    def refuses(descriptor: int, rooms: list[memoryview], offset: int) -> int:
        if descriptor == 99:
            raise OSError(code, os.strerror(code))
        return preadv(descriptor, rooms, offset)

    monkeypatch.setattr(os, "preadv", refuses)
    source, room = Source(fd, direct_fd=99), bytearray(4096)
    source.read(memoryview(room), 4096, direct=True)
    assert room == DATA[4096:8192]
    assert source.refused
    assert not any(map(source.use_direct, range(8)))


def test_what_is_missing_after_a_direct_read_is_read_through_the_cache(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def half(descriptor: int, rooms: list[memoryview], offset: int) -> int:
        if descriptor == 99:
            return preadv(fd, [rooms[0][: len(rooms[0]) // 2]], offset)
        return preadv(descriptor, rooms, offset)

    monkeypatch.setattr(os, "preadv", half)
    room = bytearray(4096)
    Source(fd, direct_fd=99).read(memoryview(room), 0, direct=True)
    assert room == DATA[:4096]


def test_a_small_or_cached_file_gets_no_second_descriptor(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading._open_direct(fd, 3 << 16, 1 << 16) == -1
    monkeypatch.setattr(reading, "is_cached", lambda descriptor, offset, nbytes: True)
    assert reading._open_direct(fd, len(DATA), 1 << 16) == -1
