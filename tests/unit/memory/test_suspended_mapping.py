"""Suspended memory: given up wholly, and back at the same addresses with what was written."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ClosedError, NotSupportedError
from trims.memory import mapping
from trims.memory.attach import Attachment
from trims.memory.suspended_mapping import SuspendedMapping

if TYPE_CHECKING:
    from pathlib import Path

NBYTES = 3 * mmap.PAGESIZE


@pytest.fixture(autouse=True, params=["where the kernel puts it", "aligned for large pages"])
def _mapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "aligned" in request.param:
        monkeypatch.setattr(mapping, "_WORTH_BYTES", 1)


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "image"
    path.write_bytes(bytes(range(256)) * (NBYTES // 256))
    return path


def opened(path: Path) -> tuple[Attachment, tuple[int, int]]:
    fd = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(fd)
        return Attachment(fd, NBYTES), (status.st_dev, status.st_ino)
    finally:
        os.close(fd)


def mapped(path: Path) -> bool:
    with open("/proc/self/maps") as file:
        return str(path) in file.read()


def held(path: Path) -> bool:
    return any(os.path.realpath(f"/proc/self/fd/{name}") == str(path) for name in os.listdir("/proc/self/fd"))


def test_parked_memory_is_neither_mapped_nor_held_and_comes_back(file: Path) -> None:
    attachment, identity = opened(file)
    shared, private = attachment.data, attachment.private_data()
    private[mmap.PAGESIZE : mmap.PAGESIZE + 3] = b"own"
    parking = attachment.park(identity)
    assert not mapped(file)
    assert not held(file)
    with pytest.raises(ClosedError, match="parked"):
        attachment.private_data()
    with open(file, "rb") as again:
        attachment.wake(parking, again.fileno(), populate=True)
    assert bytes(shared) == file.read_bytes()
    assert bytes(private[mmap.PAGESIZE : mmap.PAGESIZE + 4]) == b"own\3"
    assert bytes(private[: mmap.PAGESIZE]) == bytes(shared[: mmap.PAGESIZE])
    assert bytes(attachment.private_data()) == bytes(shared)


def test_memory_that_was_given_up_while_parked_is_not_mapped_again(file: Path) -> None:
    attachment, identity = opened(file)
    view = attachment.data
    parking = attachment.park(identity)
    view.release()
    attachment.close()
    with open(file, "rb") as again, pytest.raises(ClosedError, match="given up"):
        parking.restore(again.fileno())
    assert not mapped(file)


def test_a_descriptor_that_was_closed_while_parked_stays_its_next_owner_s(file: Path) -> None:
    attachment, identity = opened(file)
    other = os.open(file, os.O_RDONLY)
    parking = attachment.park(identity)
    os.close(other)
    read, write = os.pipe()
    try:
        assert other in (read, write)
        with open(file, "rb") as again:
            attachment.wake(parking, again.fileno())
        os.write(write, b"x")
        assert os.read(read, 1) == b"x"
    finally:
        os.close(read)
        os.close(write)


def test_only_open_weights_of_one_mapped_file_can_be_parked(file: Path) -> None:
    with pytest.raises(NotSupportedError, match="does not tell"):
        SuspendedMapping((1, 2))
    attachment, identity = opened(file)
    attachment.park(identity)
    with pytest.raises(NotSupportedError, match="once"):
        attachment.park(identity)
    attachment.close()
    with pytest.raises(NotSupportedError, match="open weights"):
        attachment.park(identity)
