"""A copier's work: what lies in files is put together in order, hashed on the way, a piece at a time."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.background.task import PIECE_BYTES, Order, Part, Running, SourceFailedError, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[[bytes], int]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Make]:
    """Makes files; returns descriptors to read and write them."""
    fds: list[int] = []

    def make(data: bytes) -> int:
        fd = os.open(tmp_path / str(len(fds)), os.O_RDWR | os.O_CREAT)
        os.write(fd, data)
        fds.append(fd)
        return fd

    yield make
    for fd in fds:
        os.close(fd)


def do(order: Order) -> dict[str, str]:
    running = Running(order)
    try:
        while running.done_bytes < order.task.nbytes:
            assert running.advance() == running.done_bytes
        return running.digests()
    finally:
        running.close()


@pytest.mark.parametrize("large_pages", [False, True])
def test_parts_of_several_files_lie_where_they_belong_with_zeros_between(file: Make, large_pages: bool) -> None:
    chance = random.Random(3)
    sources = [chance.randbytes(3 * PIECE_BYTES + 11) for _ in range(3)]
    nbytes, parts, expected, at = 5 * PIECE_BYTES + 77, list[Part](), bytearray(5 * PIECE_BYTES + 77), 0
    for number in range(300):
        length = chance.choice([0, 1, 500, 60_000, PIECE_BYTES + 5 if number % 100 == 7 else 9])
        at += chance.choice([0, 0, 1, 63, 4096])
        if at + length > nbytes:
            break
        which, offset = chance.randrange(3), chance.randrange(1000)
        parts.append(Part(at, length, which, offset))
        expected[at : at + length] = sources[which][offset : offset + length]
        at += length
    assert len(parts) > 20
    target = file(bytes(nbytes))
    found = do(Order(Task(nbytes, parts, ("blake3", "sha256"), large_pages), [file(each) for each in sources], target))
    assert os.pread(target, nbytes + 1, 0) == expected
    assert found == {
        "blake3": blake3.blake3(bytes(expected)).hexdigest(),
        "sha256": hashlib.sha256(expected).hexdigest(),
    }


def test_a_file_is_only_hashed_where_there_is_no_target(file: Make) -> None:
    data = os.urandom(2 * PIECE_BYTES + 1)
    assert do(Order(Task.of_file(len(data)), [file(data)])) == {"blake3": blake3.blake3(data).hexdigest()}
    assert do(Order(Task.of_file(len(data), ()), [file(data)])) == {}


def test_memory_is_had_in_large_pages_where_the_kernel_gives_them() -> None:
    target, source = os.memfd_create("target"), os.memfd_create("source")
    data = os.urandom(5 << 20)
    os.write(source, data)
    os.ftruncate(target, len(data))
    do(Order(Task.of_file(len(data), large_pages=True), [source], target))
    assert os.pread(target, len(data) + 1, 0) == data
    os.close(target)
    os.close(source)


def test_a_source_that_is_truncated_meanwhile_is_named_with_where_it_ends(file: Make) -> None:
    good, short = file(bytes(100)), file(bytes(2 * PIECE_BYTES))
    running = Running(
        Order(Task(2 * PIECE_BYTES + 100, [Part(0, 100, 0, 0), Part(100, 2 * PIECE_BYTES, 1, 0)]), [good, short])
    )
    running.advance()
    os.ftruncate(short, PIECE_BYTES + 7)
    with pytest.raises(SourceFailedError, match="truncated") as failed:
        running.advance()
    assert (failed.value.file, failed.value.at, failed.value.errno) == (1, PIECE_BYTES + 7, None)


def test_a_source_that_cannot_be_read_is_named_with_the_kernels_word(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(SourceFailedError, match="Is a directory") as failed:
        Running(Order(Task.of_file(10), [folder])).advance()
    assert failed.value.errno == errno.EISDIR
    os.close(folder)


def test_a_target_without_room_is_an_error_of_the_target(file: Make) -> None:
    target = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(OSError, match="No space left"):
        Running(Order(Task.of_file(10), [file(bytes(10))], target)).advance()
    os.close(target)
