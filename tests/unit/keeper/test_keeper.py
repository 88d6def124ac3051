"""The keeper: what it holds, when it needs a context, and that a borrower sees sealed bytes only."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import blake3
import pytest
from keepers import DIGEST, KEY, TOTAL, UUID, put
from looking import wait_until

from trims.core.errors import CallerError, CapacityError, CudaError, DrainingError, ImageError, NotSupportedError
from trims.keeper.keeper import Keeper
from trims.keeper.mover import CHUNK_BYTES
from trims.memory.cuda.api import Device
from trims.testing.device_borrower import Borrower
from trims.testing.fake_cuda import CONTEXT_BYTES, FakeCuda, copies_held, current, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def test_a_borrower_reads_the_image_that_was_filled(
    keeper: Keeper, kind: str, driver: str, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image()
    number = put(keeper, fd, len(data))
    with Borrower(kind, UUID, driver) as borrower:
        exported, head_fd = keeper.export(number)
        os.close(head_fd)
        borrower.open(exported)
        for offset in (0, CHUNK_BYTES - 7, len(data) - 16):
            assert borrower.read(offset, 16) == data[offset : offset + 16]
        borrower.close()


def test_no_thread_keeps_the_context_of_a_keeper(keeper: Keeper, image: Callable[..., tuple[int, bytes]]) -> None:
    """Contexts are destroyed at rest; a thread that kept one would make calls with it that need none."""
    fd, data = image()
    number = put(keeper, fd, len(data))
    assert current() is None
    keeper.rest()
    exported, head_fd = keeper.export(number)
    os.close(head_fd)
    exported.close()
    keeper.free(number)
    assert current() is None


def test_what_lies_on_the_device_can_be_read_back_and_hashed(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image()
    number = put(keeper, fd, len(data))
    back = os.memfd_create("back")
    os.ftruncate(back, len(data))
    progress: list[int] = []
    keeper.read(number, back, progress.append)
    assert os.pread(back, len(data), 0) == data
    assert progress[-1] == len(data)
    assert progress == sorted(progress)
    assert keeper.digest(number) == blake3.blake3(data).hexdigest()
    os.close(back)


def test_every_byte_is_there_before_a_fill_returns(
    keeper: Keeper, folder: Path, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image()
    number = keeper.create(len(data)).number
    filling = threading.Thread(target=keeper.fill, args=(number, fd))
    with copies_held(folder):
        filling.start()
        with pytest.raises(CallerError, match="not filled"):
            keeper.seal(number, KEY, DIGEST)
        assert filling.is_alive()
    filling.join()
    keeper.seal(number, KEY, DIGEST)
    assert keeper.digest(number) == blake3.blake3(data).hexdigest()


def test_only_sealed_images_are_exported_and_sealed_ones_are_not_filled_again(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image()
    number = keeper.create(len(data)).number
    for early in (keeper.export, keeper.digest):
        with pytest.raises(CallerError, match="not sealed"):
            early(number)
    keeper.fill(number, fd)
    keeper.seal(number, KEY, DIGEST)
    with pytest.raises(CallerError, match="is sealed"):
        keeper.fill(number, fd)
    with pytest.raises(CallerError, match="no image 999"):
        keeper.export(999)


def test_memory_is_not_taken_away_under_a_copy_that_runs(
    keeper: Keeper, folder: Path, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image()
    number = keeper.create(len(data)).number
    begun = threading.Event()
    filling = threading.Thread(target=keeper.fill, args=(number, fd, lambda _: begun.set()))
    with copies_held(folder):
        filling.start()
        assert begun.wait(30)
        assert not keeper.close(wait_s=0.0)
        assert [held.number for held in keeper.held()] == [number]
        closing = threading.Thread(target=keeper.close)
        closing.start()
    for thread in (filling, closing):
        thread.join()
    assert keeper.held() == []
    with pytest.raises(DrainingError, match="is ending"):
        keeper.create(1)


@pytest.mark.parametrize("wrong", ["short", "no image"])
def test_a_file_that_is_not_the_image_leaves_the_allocation_as_it_was(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]], wrong: str
) -> None:
    fd, data = image()
    number = keeper.create(len(data)).number
    bad = os.memfd_create("bad")
    os.write(bad, data[: len(data) // 2] if wrong == "short" else bytes(len(data)))
    with pytest.raises(ImageError):
        keeper.fill(number, bad)
    keeper.fill(number, fd)
    keeper.seal(number, KEY, DIGEST)
    assert keeper.digest(number) == blake3.blake3(data).hexdigest()
    os.close(bad)


def test_a_full_device_is_a_capacity_error_and_freeing_makes_room(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image()
    number = put(keeper, fd, len(data))
    free = keeper.room()[0]
    with pytest.raises(CapacityError):
        keeper.create(free + 1)
    keeper.free(number)
    keeper.free(number)
    assert keeper.room()[0] > free
    keeper.create(free + 1)


def test_the_context_is_given_back_when_nothing_needs_it(
    folder: Path, keeper: Keeper, driver: str, image: Callable[..., tuple[int, bytes]]
) -> None:
    """After rest a device is used for weights, and by an `ipc` keeper that holds some for its context."""
    resting_bytes = CONTEXT_BYTES if driver == "ipc" else 0
    watcher = FakeCuda(str(folder))
    device = watcher.devices()[0]
    assert watcher.free_bytes(device) == TOTAL, "looking at devices takes nothing"
    fd, data = image()
    number = put(keeper, fd, len(data))
    assert keeper.awake
    weights_bytes = keeper.held()[0].allocation.size_bytes
    assert TOTAL - watcher.free_bytes(device) == weights_bytes + CONTEXT_BYTES
    keeper.rest()
    wait_until(lambda: keeper.awake == (driver == "ipc"), "the mover does not end")
    assert TOTAL - watcher.free_bytes(device) == weights_bytes + resting_bytes
    assert keeper.digest(number) == blake3.blake3(data).hexdigest(), "and taken again when it is needed"
    keeper.free(number)
    keeper.rest()
    wait_until(lambda: not keeper.awake, "the mover does not end")
    assert watcher.free_bytes(device) == TOTAL


def test_a_sealed_image_is_exported_and_freed_on_a_device_that_others_filled(
    folder: Path, cuda: FakeCuda, image: Callable[..., tuple[int, bytes]]
) -> None:
    """A context takes memory, of which there is none: a mover cannot start, and nothing else needs one."""
    keeper = Keeper(cuda, UUID, "vmm", idle_s=0.0)
    fd, data = image()
    number = put(keeper, fd, len(data))
    keeper.rest()
    wait_until(lambda: not keeper.awake, "the mover does not end")
    stranger = FakeCuda(str(folder))
    stranger.use(UUID)
    taken = stranger.allocate(stranger.memory()[0])
    assert keeper.room() == (0, TOTAL)
    with pytest.raises(CapacityError, match="no memory left"):
        keeper.digest(number)
    exported, head_fd = keeper.export(number)
    os.close(head_fd)
    exported.close()
    keeper.free(number)
    assert keeper.held() == []
    assert stranger.memory()[0] >= len(data)
    stranger.free(taken)
    stranger.leave()
    keeper.close()


def test_an_image_that_the_driver_does_not_take_back_stays_in_the_books(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, data = image()
    number = put(keeper, fd, len(data))
    with monkeypatch.context() as patch:
        patch.setattr(keeper.memory, "free", _refuse)
        with pytest.raises(CudaError, match="refused"):
            keeper.free(number)
    assert [held.number for held in keeper.held()] == [number]
    assert keeper.digest(number) == blake3.blake3(data).hexdigest()
    keeper.free(number)
    assert keeper.held() == []


def _refuse(*_: object) -> None:
    raise CudaError("refused")


@pytest.mark.parametrize("driver", ["ipc"], indirect=True)  # whose keeper has a context itself
def test_a_context_that_cannot_be_given_back_is_nothing_to_the_next_order(
    keeper: Keeper, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.free(keeper.create(1).number)
    leave = cuda.leave

    def fails() -> None:
        leave()
        raise CudaError("cuDevicePrimaryCtxGetState: CUDA_ERROR_NOT_INITIALIZED")

    with monkeypatch.context() as patched:
        patched.setattr(cuda, "leave", fails)
        with pytest.raises(CudaError):
            keeper.rest()
    keeper.free(keeper.create(1).number)
    keeper.rest()
    assert not keeper.awake


def test_a_context_that_was_used_a_moment_ago_is_kept(
    cuda: FakeCuda, driver: str, image: Callable[..., tuple[int, bytes]]
) -> None:
    keeper = Keeper(cuda, UUID, driver, idle_s=3600.0)
    fd, data = image()
    keeper.free(put(keeper, fd, len(data)))
    keeper.rest()
    assert keeper.awake
    keeper.close()


# -- two devices -------------------------------------------------------------------------------------------------------

OTHER = "GPU-00000000-0000-0000-0000-000000000002"


@pytest.fixture
def two(folder: Path, driver: str) -> Iterator[Callable[..., tuple[Keeper, Keeper]]]:
    """Keepers of two devices: the first can reach the second or not."""
    made: list[Keeper] = []

    def make(*, peers: bool) -> tuple[Keeper, Keeper]:
        devices = [Device(UUID, "Fake", TOTAL, peers=(OTHER,) if peers else ()), Device(OTHER, "Fake", TOTAL)]
        make_devices(folder, devices)
        made.extend(Keeper(FakeCuda(str(folder)), uuid, driver, idle_s=0.0) for uuid in (UUID, OTHER))
        return made[0], made[1]

    yield make
    for keeper in made:
        keeper.close()


@pytest.mark.parametrize("driver", ["vmm"], indirect=True)  # a process cannot open handles of its own
def test_an_image_is_copied_from_a_peer_with_its_head(
    two: Callable[..., tuple[Keeper, Keeper]], image: Callable[..., tuple[int, bytes]]
) -> None:
    here, there = two(peers=True)
    fd, data = image()
    exported, head_fd = there.export(put(there, fd, len(data)))
    number, told = here.create(len(data)).number, list[int]()
    here.copy(number, exported, head_fd, told.append)
    exported.close()
    here.seal(number, KEY, DIGEST)
    assert told[-1] == len(data)
    assert here.digest(number) == blake3.blake3(data).hexdigest()
    copied, copied_head = here.export(number)
    copied.close()
    assert os.pread(copied_head, 4096, 0) == os.pread(head_fd, 4096, 0)
    os.close(copied_head)
    os.close(head_fd)


def test_a_device_that_is_no_peer_is_refused_and_nothing_is_filled(
    two: Callable[..., tuple[Keeper, Keeper]], image: Callable[..., tuple[int, bytes]]
) -> None:
    here, there = two(peers=False)
    fd, data = image()
    exported, head_fd = there.export(put(there, fd, len(data)))
    number = here.create(len(data)).number
    with pytest.raises(NotSupportedError, match=f"{OTHER}, this process uses {UUID}"):
        here.copy(number, exported, head_fd)
    exported.close()
    os.close(head_fd)
    with pytest.raises(CallerError, match="not filled"):
        here.seal(number, KEY, DIGEST)


def test_an_image_that_is_being_filled_is_left_to_that_order(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]]
) -> None:
    """Another connection may name it: to free its memory under a running copy would end the keeper."""
    fd, data = image()
    number = keeper.create(len(data)).number
    refused: list[str] = []

    freed = threading.Thread(target=keeper.free, args=(number,))

    def begin_to_free(done: int) -> None:
        if not refused:
            for order in (lambda: keeper.fill(number, fd), lambda: keeper.seal(number, KEY, DIGEST)):
                with pytest.raises(CallerError, match=r"used by another order just now|not filled"):
                    order()
                refused.append("refused")
            freed.start()
        assert freed.is_alive(), "it waits for the copy to end"
        assert done <= len(data)

    keeper.fill(number, fd, begin_to_free)
    freed.join()
    assert refused == ["refused"] * 2
    assert keeper.held() == []
