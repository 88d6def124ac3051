"""The mover's process as its keeper sees it; its bad days are in tests/fault/test_mover_faults.py."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import blake3
import pytest
from keepers import TOTAL, UUID
from looking import wait_until

from trims.core.errors import CapacityError, ImageError, LostPeerError
from trims.keeper import mover_process
from trims.keeper.mover_process import MoverProcess
from trims.keeper.moves import Move
from trims.memory.cuda.drivers import device_memory
from trims.testing.fake_cuda import FakeCuda, copies_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.memory.cuda.drivers import Allocation, DeviceMemory


@pytest.fixture
def memory(cuda: FakeCuda) -> DeviceMemory:
    return device_memory("vmm", cuda, cuda.select(UUID))


@pytest.fixture
def mover(memory: DeviceMemory, kind: str) -> Iterator[MoverProcess]:
    made = MoverProcess(memory, UUID, kind)
    yield made
    made.close()
    assert not made.awake


@pytest.fixture
def filled(
    memory: DeviceMemory, mover: MoverProcess, image: Callable[..., tuple[int, bytes]]
) -> Iterator[tuple[Allocation, bytes]]:
    fd, data = image()
    made = memory.allocate(len(data))
    mover.move(Move("fill", len(data), fd), made, lambda _: None)
    yield made, data
    memory.free(made)


def test_no_process_runs_before_the_first_move_and_after_a_rest(
    mover: MoverProcess, filled: tuple[Allocation, bytes], cuda: FakeCuda
) -> None:
    made, data = filled
    first = mover.pid
    assert mover.awake
    assert mover.move(Move("digest", len(data)), made, lambda _: None) == blake3.blake3(data).hexdigest()
    assert mover.pid == first
    mover.rest()
    mover.rest()
    assert mover.pid == 0
    wait_until(lambda: not mover.awake, "it does not end")
    assert cuda.free_bytes(cuda.devices()[0]) == TOTAL - made.size_bytes
    assert mover.move(Move("digest", len(data)), made, lambda _: None) == blake3.blake3(data).hexdigest()
    assert mover.pid not in (0, first)


def test_a_connection_that_ends_stops_its_move_and_the_process_serves_on(
    mover: MoverProcess, filled: tuple[Allocation, bytes]
) -> None:
    made, data = filled

    def gone(_: int) -> None:
        raise BrokenPipeError

    pid = mover.pid
    with pytest.raises(BrokenPipeError):
        mover.move(Move("digest", len(data)), made, gone)
    assert mover.move(Move("digest", len(data)), made, lambda _: None) == blake3.blake3(data).hexdigest()
    assert mover.pid == pid


def test_what_is_wrong_with_a_file_is_the_error_of_its_move(
    mover: MoverProcess, filled: tuple[Allocation, bytes]
) -> None:
    made, data = filled
    short = os.memfd_create("short")
    with pytest.raises(ImageError, match="truncated"):
        mover.move(Move("fill", len(data), short), made, lambda _: None)
    os.close(short)
    assert mover.awake


def test_a_mover_that_gives_no_sign_of_life_is_killed(
    mover: MoverProcess, filled: tuple[Allocation, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_process, "SILENT_S", 0.2)
    made, data = filled
    mover.close()
    with copies_held(folder), pytest.raises(LostPeerError, match="gave no sign of life for 0 s"):
        mover.move(Move("digest", len(data)), made, lambda _: None)
    assert not mover.awake


def test_a_process_that_cannot_be_started_is_a_lack_of_capacity(
    mover: MoverProcess, memory: DeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    made = memory.allocate(1)
    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        with pytest.raises(CapacityError, match="no process can be started to move images"):
            mover.move(Move("digest", 1), made, lambda _: None)
    assert set(os.listdir("/proc/self/fd")) == before
    memory.free(made)
