"""Moves in a process that has the context, and the turns in which they run."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import blake3
import pytest
from keepers import TOTAL, UUID

from trims.core.errors import NotSupportedError
from trims.keeper import moves
from trims.keeper.moves import LocalMover, Move, Turns
from trims.memory.cuda.drivers import Export, device_memory
from trims.testing.fake_cuda import CONTEXT_BYTES, FakeCuda, current

if TYPE_CHECKING:
    from collections.abc import Callable


def test_memory_is_filled_hashed_and_read_by_its_owner_and_by_its_export(
    cuda: FakeCuda, driver: str, image: Callable[..., tuple[int, bytes]]
) -> None:
    device = cuda.select(UUID)
    memory = device_memory(driver, cuda, device)
    mover, (fd, data), told = LocalMover(cuda, device, memory), image(), list[int]()
    with mover.context():
        made = memory.allocate(len(data))
        exported = memory.export(made)
    given = exported if driver == "vmm" else made  # a process cannot open handles of its own
    assert mover.move(Move("fill", len(data), fd), given, told.append) == ""
    assert told[-1] == len(data)
    assert mover.move(Move("digest", len(data)), made, told.append) == blake3.blake3(data).hexdigest()
    back = os.memfd_create("back")
    os.truncate(back, len(data))
    mover.move(Move("read", len(data), back), given, told.append)
    assert os.pread(back, len(data), 0) == data
    os.close(back)
    exported.close()
    with mover.context():
        memory.free(made)
    assert current() is None
    assert mover.awake
    assert cuda.free_bytes(device) == TOTAL - CONTEXT_BYTES
    mover.close()
    assert cuda.free_bytes(device) == TOTAL


def test_memory_of_a_device_that_is_no_peer_is_not_copied(cuda: FakeCuda, driver: str) -> None:
    device = cuda.select(UUID)
    memory = device_memory(driver, cuda, device)
    mover = LocalMover(cuda, device, memory)
    with mover.context():
        made = memory.allocate(1)
    source = Export(driver, "GPU-other", made.size_bytes, bytes(64), -1, cuda.kind)
    with pytest.raises(NotSupportedError, match="the memory lies on GPU-other"):
        mover.move(Move("copy", 1, source=source), made, lambda _: None)
    with mover.context():
        memory.free(made)
    mover.close()


def test_a_waiting_move_reports_while_the_running_one_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "_STILL_THERE_S", 0.001)
    turns, heard, told = Turns(), threading.Event(), list[int]()

    def wait() -> None:
        def report(done: int) -> None:
            told.append(done)
            heard.set()

        with turns.taken(report) as progress:
            progress(7)

    waiting = threading.Thread(target=wait)
    with turns.taken(None) as running:
        waiting.start()
        while not heard.wait(0.01):
            running(1)
    waiting.join()
    assert told[0] == 0
    assert told[-1] == 7
