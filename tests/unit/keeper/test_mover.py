"""Moving images between files and devices: every byte arrives, by the way that was measured to be faster."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import blake3
import pytest
from keepers import TOTAL, UUID

from trims.core.errors import CapacityError, CudaError, ImageError
from trims.keeper.mover import CHUNK_BYTES, Mover
from trims.keeper.pace import TELLING_BYTES, in_shared_memory
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import FakeCuda, copies_held, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def test_both_ways_in_are_tried_and_the_faster_one_is_kept(
    cuda: FakeCuda, image: Callable[..., tuple[int, bytes]]
) -> None:
    device = cuda.use(UUID)
    mover = Mover(cuda, device)
    fd, data = image(80 << 20)
    target = cuda.allocate(len(data))
    mover.copy_in(fd, len(data), target)
    mover.copy_in(fd, len(data), target)
    assert set(mover.costs.of(len(data), shared=True)) == {"staged", "registered"}
    mover.costs.record("staged", len(data), 1e6, shared=True)
    mover.costs.record("registered", len(data), 1e-9, shared=True)
    before = mover.costs.of(len(data), shared=True)
    mover.copy_in(fd, len(data), target)
    after = mover.costs.of(len(data), shared=True)
    assert after["registered"] > before["registered"]
    assert after["staged"] == before["staged"]
    assert mover.digest(target, len(data)) == blake3.blake3(data).hexdigest()
    mover.close()
    cuda.free(target)
    cuda.leave()


def test_making_the_buffers_is_no_part_of_what_is_measured(
    cuda: FakeCuda, image: Callable[..., tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this the way that is tried first would look slow for ever."""
    clock, allocate = [0.0], cuda.host_allocate

    def slowly(nbytes: int) -> int:
        clock[0] += 100.0
        return allocate(nbytes)

    monkeypatch.setattr(cuda, "host_allocate", slowly)
    monkeypatch.setattr("trims.keeper.mover.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    mover = Mover(cuda, cuda.use(UUID))
    fd, data = image(80 << 20)
    target = cuda.allocate(len(data))
    mover.copy_in(fd, len(data), target)
    assert clock[0] >= 100.0
    assert mover.costs.of(len(data), shared=True) == {"staged": 0.0}
    mover.close()
    cuda.free(target)
    cuda.leave()


def test_the_pages_of_a_file_on_a_disk_are_never_registered(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpinning marks pages dirty: an image that did not change would be written back."""
    monkeypatch.setattr(cuda, "host_register", lambda *_: pytest.fail("the page cache was registered"))
    data = os.urandom(1 << 20) * 65
    (tmp_path / "image").write_bytes(data)
    with (tmp_path / "image").open("rb") as file:
        if in_shared_memory(file.fileno()):
            pytest.skip("the temporary folder lies in memory")
    mover = Mover(cuda, cuda.use(UUID))
    target = cuda.allocate(len(data))
    with (tmp_path / "image").open("rb") as file:
        for _ in range(3):
            mover.copy_in(file.fileno(), len(data), target)
    assert mover.digest(target, len(data)) == blake3.blake3(data).hexdigest()
    assert set(mover.costs.of(len(data), shared=False)) == {"staged"}
    mover.close()
    cuda.free(target)
    cuda.leave()


# fault (gpus): the driver refuses to pin pages -> nothing; images are staged
@pytest.mark.parametrize("error", [CudaError("INVALID_VALUE"), CapacityError("OUT_OF_MEMORY")])
def test_where_the_driver_refuses_to_register_everything_is_staged_from_then_on(
    cuda: FakeCuda, image: Callable[..., tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    mover = Mover(cuda, cuda.use(UUID))
    asked: list[int] = []

    def refuse(address: int, _nbytes: int) -> None:
        asked.append(address)
        raise error

    monkeypatch.setattr(cuda, "host_register", refuse)
    fd, data = image(80 << 20)
    target = cuda.allocate(len(data))
    mover.costs.record("staged", len(data), 1e6, shared=True)
    mover.costs.record("registered", len(data), 1e-9, shared=True)
    for _ in range(2):
        mover.copy_in(fd, len(data), target)
        assert mover.digest(target, len(data)) == blake3.blake3(data).hexdigest()
    assert len(asked) == 1
    assert mover.ways == ("staged",)
    mover.close()
    cuda.free(target)
    cuda.leave()


def test_without_registration_everything_is_staged(folder: Path, image: Callable[..., tuple[int, bytes]]) -> None:
    make_devices(folder, [Device(UUID, "Fake", TOTAL, read_only_registration=False)])
    cuda = FakeCuda(str(folder))
    mover = Mover(cuda, cuda.use(UUID))
    fd, data = image(80 << 20)
    target = cuda.allocate(len(data))
    for _ in range(3):
        mover.copy_in(fd, len(data), target)
    assert set(mover.costs.of(len(data), shared=True)) == {"staged"}
    mover.close()
    cuda.free(target)
    cuda.leave()


def test_a_file_on_disk_is_never_registered(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims.keeper.mover.in_shared_memory", lambda fd: False)
    monkeypatch.setattr(cuda, "host_register", lambda *given: pytest.fail("pages of a file on disk were pinned"))
    mover = Mover(cuda, cuda.use(UUID))
    nbytes = TELLING_BYTES + 1
    with (tmp_path / "image").open("w+b") as file:
        file.truncate(nbytes)
        target = cuda.allocate(nbytes)
        for _ in range(3):
            mover.copy_in(file.fileno(), nbytes, target)
    assert set(mover.costs.of(nbytes, shared=False)) == {"staged"}
    assert mover.costs.of(nbytes, shared=True) == {}
    mover.close()
    cuda.free(target)
    cuda.leave()


@pytest.fixture
def mover(cuda: FakeCuda) -> Iterator[Mover]:
    made = Mover(cuda, cuda.use(UUID), lanes=2)
    yield made
    made.close()
    cuda.leave()


@pytest.mark.parametrize("way", ["staged", "registered"])
@pytest.mark.parametrize("nbytes", [1, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 5])
def test_a_file_comes_back_from_the_device_as_it_went_in(
    mover: Mover, cuda: FakeCuda, folder: Path, way: str, nbytes: int
) -> None:
    data = os.urandom(nbytes)
    (folder / "in").write_bytes(data)
    (folder / "out").write_bytes(bytes(nbytes))
    target = cuda.allocate(nbytes)
    told: dict[str, list[int]] = {"in": [], "out": []}
    with (folder / "in").open("rb") as source, (folder / "out").open("r+b") as back:
        mover.copy_in(source.fileno(), nbytes, target, told["in"].append, way=way)
        assert mover.digest(target, nbytes) == blake3.blake3(data).hexdigest()
        mover.copy_out(target, nbytes, back.fileno(), told["out"].append)
    assert (folder / "out").read_bytes() == data
    for each in told.values():
        assert each == sorted(each)
        assert each[-1] == nbytes
    cuda.free(target)


@pytest.mark.parametrize("way", ["staged", "registered"])
def test_a_file_shorter_than_it_should_be_is_an_image_error(
    mover: Mover, cuda: FakeCuda, folder: Path, way: str
) -> None:
    (folder / "in").write_bytes(bytes(CHUNK_BYTES))
    target = cuda.allocate(2 * CHUNK_BYTES)
    with (folder / "in").open("rb") as source, pytest.raises(ImageError, match="truncated"):
        mover.copy_in(source.fileno(), 2 * CHUNK_BYTES, target, way=way)
    cuda.free(target)


def test_a_copy_on_the_device_is_told_in_pieces(mover: Mover, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims.keeper.mover._ACROSS_BYTES", 1000)
    nbytes, told = 2500, list[int]()
    source, target = cuda.allocate(nbytes), cuda.allocate(nbytes)
    with memfd(os.urandom(nbytes)) as fd:
        mover.copy_in(fd, nbytes, source)
    mover.copy_across(source, nbytes, target, told.append)
    assert told == [1000, 2000, 2500]
    assert mover.digest(target, nbytes) == mover.digest(source, nbytes)
    for address in (source, target):
        cuda.free(address)


def test_a_failed_copy_waits_for_the_others_and_the_mover_serves_on(
    mover: Mover, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = 6 * CHUNK_BYTES
    target = cuda.allocate(nbytes)
    copy_in, calls = cuda.copy_in, list[int]()

    def fails_second(address: int, *given: int) -> None:
        calls.append(address)
        if len(calls) == 2:
            raise CudaError("refused")
        copy_in(address, *given)

    with memfd(bytes(nbytes)) as fd:
        with monkeypatch.context() as patched:
            patched.setattr(cuda, "copy_in", fails_second)
            with pytest.raises(CudaError, match="refused"):
                mover.copy_in(fd, nbytes, target, way="staged")
        assert len(calls) <= 4, "no lane begins another chunk after a failure"
        mover.copy_in(fd, nbytes, target, way="staged")
    assert mover.digest(target, nbytes) == blake3.blake3(bytes(nbytes)).hexdigest()
    cuda.free(target)


@contextmanager
def memfd(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("source")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def test_a_segment_that_is_registered_is_copied_from_there_whatever_was_measured(
    mover: Mover, cuda: FakeCuda, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes, registered = TELLING_BYTES + 1, list[int]()
    register = cuda.host_register
    monkeypatch.setattr("trims.keeper.mover.in_shared_memory", lambda fd: True)
    monkeypatch.setattr(cuda, "host_register", lambda *given: (registered.append(given[0]), register(*given)))
    target = cuda.allocate(nbytes)
    (folder / "segment").write_bytes(os.urandom(1 << 20) * 64 + b"x")
    with (folder / "segment").open("rb") as file:
        mover.copy_in(file.fileno(), nbytes, target, way="registered")
        mover.costs.record("staged", nbytes, 1e-9, shared=True)
        costs = mover.costs.of(nbytes, shared=True)
        for _ in range(2):
            mover.copy_in(file.fileno(), nbytes, target)
    assert len(registered) == 1
    assert mover.costs.of(nbytes, shared=True) == costs, "what is registered says nothing about what is not"
    assert mover.digest(target, nbytes) == blake3.blake3((folder / "segment").read_bytes()).hexdigest()
    cuda.free(target)


def test_the_next_chunk_is_read_while_the_last_one_is_copied(cuda: FakeCuda, folder: Path) -> None:
    mover = Mover(cuda, cuda.use(UUID), lanes=1)
    nbytes, told, twice = 2 * CHUNK_BYTES, list[int](), threading.Event()
    target = cuda.allocate(nbytes)

    def progress(done: int) -> None:
        told.append(done)
        if done == nbytes:
            twice.set()

    def copy(fd: int) -> None:
        cuda.bind()
        mover.copy_in(fd, nbytes, target, progress, way="staged")

    with memfd(os.urandom(nbytes)) as fd:
        copying = threading.Thread(target=copy, args=(fd,))
        with copies_held(folder):
            copying.start()
            assert twice.wait(30), "one thread did not read two chunks while no copy went on"
            assert copying.is_alive(), "it ends when the device has every byte"
        copying.join()
    mover.close()
    cuda.free(target)
    cuda.leave()
