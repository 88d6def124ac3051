"""Registered segments: kept while they have a name and the bound allows, and given back at the end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from keepers import UUID

from trims.core.errors import CudaError
from trims.keeper.pinned_segments import PinnedSegments
from trims.testing.fake_cuda import FakeCuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NBYTES = 3 << 20


class Counting(FakeCuda):
    """Records what is registered and given back."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.registered: list[int] = []
        self.given_back: list[int] = []

    def host_register(self, address: int, nbytes: int) -> None:
        super().host_register(address, nbytes)
        self.registered.append(address)

    def host_unregister(self, address: int) -> None:
        super().host_unregister(address)
        self.given_back.append(address)


@pytest.fixture
def counting(folder: Path, kind: str) -> Iterator[Counting]:
    assert kind
    cuda = Counting(str(folder))
    cuda.use(UUID)
    yield cuda
    assert sorted(cuda.registered) == sorted(cuda.given_back)
    cuda.leave()


@pytest.fixture
def segment(folder: Path) -> Iterator[Callable[[str], int]]:
    """Makes named files; their descriptors are closed after the test."""
    fds: list[int] = []

    def make(name: str) -> int:
        fds.append(os.open(folder / name, os.O_RDWR | os.O_CREAT))
        os.truncate(fds[-1], NBYTES)
        return fds[-1]

    yield make
    for fd in fds:
        os.close(fd)


def use(segments: PinnedSegments, fd: int) -> int:
    with segments.address(fd, NBYTES) as address:
        return address


def test_a_segment_with_a_name_is_registered_once(counting: Counting, segment: Callable[[str], int]) -> None:
    segments, fd = PinnedSegments(counting), segment("a")
    assert not segments.has(fd, NBYTES)
    first = use(segments, fd)
    assert use(segments, fd) == first
    assert segments.has(fd, NBYTES)
    assert not segments.has(fd, NBYTES // 2)
    assert counting.registered == [first]
    segments.close()


def test_a_segment_that_has_lost_its_name_is_given_back(
    counting: Counting, segment: Callable[[str], int], folder: Path
) -> None:
    segments, fd = PinnedSegments(counting), segment("a")
    use(segments, fd)
    (folder / "a").unlink()
    segments.tidy()
    assert not segments.has(fd, NBYTES)
    assert counting.given_back == counting.registered


def test_memory_that_never_had_a_name_is_not_kept(counting: Counting) -> None:
    segments, fd = PinnedSegments(counting), os.memfd_create("segment")
    os.truncate(fd, NBYTES)
    use(segments, fd)
    assert not segments.has(fd, NBYTES)
    os.close(fd)


def test_beyond_the_bound_the_longest_unused_segment_is_given_back(
    counting: Counting, segment: Callable[[str], int]
) -> None:
    segments, fds = PinnedSegments(counting, 2 * NBYTES), [segment(name) for name in "abc"]
    for fd in (fds[0], fds[1], fds[0], fds[2]):
        use(segments, fd)
    assert [segments.has(fd, NBYTES) for fd in fds] == [True, False, True]
    segments.close()


def test_a_segment_that_the_driver_refuses_leaves_nothing(
    counting: Counting, segment: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise CudaError("refused")

    monkeypatch.setattr(counting, "host_register", refuse)
    segments, fd = PinnedSegments(counting), segment("a")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(CudaError, match="refused"):
        use(segments, fd)
    assert set(os.listdir("/proc/self/fd")) == before
    assert not segments.has(fd, NBYTES)
