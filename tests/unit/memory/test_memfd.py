"""Sealed memory without a name: no process can write to it."""

# fault (damage): root in a container writes to a sealed memfd -> `PermissionError` there

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CapacityError, ImageError
from trims.memory import memfd
from trims.memory.attach import Attachment
from trims.memory.large_pages import LargePages
from trims.memory.memfd import SealedMemfd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.memory.segments import Segment

DATA = bytes(range(256)) * 64
MIB = 1 << 20


@pytest.fixture
def driver() -> SealedMemfd:
    return SealedMemfd("trims-test")


@pytest.fixture
def sealed(driver: SealedMemfd) -> Iterator[Segment]:
    """A segment with `DATA`."""
    draft = driver.create("m", len(DATA))
    os.pwrite(draft.fd, DATA, 0)
    made = driver.seal(draft, "k", "d")
    yield made
    made.close()


@pytest.fixture
def received(sealed: Segment) -> Iterator[int]:
    """Yield the descriptor of a segment, as a borrower gets it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [sealed.fd])
        _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
    yield fd
    os.close(fd)


# -- no process can write ------------------------------------------------------------------------------------------

ATTEMPTS: dict[str, Callable[[int], object]] = {
    "write": lambda fd: os.pwrite(fd, b"x", 0),
    "append": lambda fd: os.pwrite(fd, b"x", len(DATA)),
    "truncate": lambda fd: os.ftruncate(fd, 1),
    "grow": lambda fd: os.ftruncate(fd, 2 * len(DATA)),
    "allocate": lambda fd: os.posix_fallocate(fd, 0, 2 * len(DATA)),
    "map": lambda fd: mmap.mmap(fd, len(DATA), prot=mmap.PROT_READ | mmap.PROT_WRITE),
    "seal": lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0),
    "make executable": lambda fd: os.fchmod(fd, 0o700),
}


@pytest.mark.parametrize("attempt", list(ATTEMPTS))
def test_neither_root_nor_the_owner_can_write_even_through_a_new_descriptor(attempt: str, received: int) -> None:
    path = f"/proc/self/fd/{received}"
    os.chmod(path, 0o600)  # who owns it may, and it does not help
    fd = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            ATTEMPTS[attempt](fd)
    finally:
        os.close(fd)
    assert os.pread(received, len(DATA) + 1, 0) == DATA


def test_the_descriptor_that_is_handed_out_can_only_be_read(sealed: Segment, received: int) -> None:
    assert fcntl.fcntl(received, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert not os.get_inheritable(sealed.fd)
    with pytest.raises(PermissionError):
        mmap.mmap(received, len(DATA), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(received, b"x", 0)


def test_it_maps_read_only_and_private_like_any_other(received: int) -> None:
    attachment = Attachment(received, len(DATA))
    private = attachment.private_data()
    private[0] = 99
    assert (attachment.data[0], private[0]) == (0, 99)
    assert bytes(attachment.data) == DATA
    del private
    attachment.close()


def test_a_draft_that_is_mapped_for_writing_is_not_sealed_and_nothing_is_left(
    driver: SealedMemfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memfd, "_SETTLE_S", 0.02)
    draft = driver.create("m", 4096)
    with mmap.mmap(draft.fd, 4096), pytest.raises(ImageError, match="still has it mapped to write"):
        driver.seal(draft, "k", "d")
    assert draft.fd == -1


def test_a_mapping_that_goes_in_a_moment_is_waited_for(driver: SealedMemfd, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = driver.create("m", 4096)
    mapping = mmap.mmap(draft.fd, 4096)
    monkeypatch.setattr(memfd.time, "sleep", lambda _: mapping.close())
    made = driver.seal(draft, "k", "d")
    with pytest.raises(PermissionError):
        mmap.mmap(made.fd, 4096)
    made.close()


def test_large_pages_are_let_go_of_before_it_is_sealed(driver: SealedMemfd) -> None:
    draft = driver.create("m", 4 * MIB)
    pages = LargePages(draft.fd, draft.nbytes)
    room = pages.reserve(0, draft.nbytes)
    if room is not None:  # the kernel may have none; then it is written through the file
        room[:4] = b"here"
        room.release()
    os.pwrite(draft.fd, b"here", 0)
    pages.close()
    made = driver.seal(draft, "k", "d")
    assert os.pread(made.fd, 4, 0) == b"here"
    made.close()


def test_a_kernel_that_does_not_know_memory_never_to_be_executed_seals_the_same(
    driver: SealedMemfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.memfd_create

    def old_kernel(name: str, flags: int) -> int:
        if flags & memfd._MFD_NOEXEC_SEAL:
            raise OSError(22, "Invalid argument")
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", old_kernel)
    made = driver.seal(driver.create("m", 4096), "k", "d")
    assert fcntl.fcntl(made.fd, fcntl.F_GET_SEALS) & memfd._SEALS == memfd._SEALS
    made.close()


def test_it_goes_with_its_last_reader_and_not_with_its_owner(tmp_path: Path) -> None:
    owner = """
import os, socket, sys
from trims.memory.memfd import SealedMemfd
driver = SealedMemfd("trims-test")
draft = driver.create("m", 4096)
os.pwrite(draft.fd, b"here", 0)
sealed = driver.seal(draft, "k", "d")
with socket.socket(fileno=int(sys.argv[1])) as door:
    socket.send_fds(door, [b"x"], [sealed.fd])
"""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", owner, str(theirs.fileno())]
    with ours:
        with theirs:
            subprocess.run(command, check=True, pass_fds=[theirs.fileno()], env=environment, cwd=tmp_path)
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    assert os.pread(fd, 4, 0) == b"here"
    os.close(fd)


@pytest.mark.parametrize(("code", "full"), [(28, True), (12, True), (5, False)])
def test_only_full_memory_is_a_capacity_error(code: int, full: bool, driver: SealedMemfd) -> None:
    error = OSError(code, "x")
    said = driver.explain(error, 4096)
    assert isinstance(said, CapacityError) if full else said is error
