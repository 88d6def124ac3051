"""A fake device, its keeper with each driver, and image files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from keepers import TOTAL, UUID, Served

from trims.image.plan import SourceTensor, plan_image
from trims.image.program import Program
from trims.keeper.keeper import Keeper
from trims.keeper.mover import CHUNK_BYTES
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import FakeCuda, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["vmm", "ipc"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(folder: Path) -> str:
    return make_devices(folder, [Device(UUID, "Fake", TOTAL)])


@pytest.fixture
def cuda(folder: Path, kind: str) -> FakeCuda:
    assert kind
    return FakeCuda(str(folder))


@pytest.fixture
def keeper(cuda: FakeCuda, driver: str) -> Iterator[Keeper]:
    made = Keeper(cuda, UUID, driver, idle_s=0.0)
    yield made
    made.close()
    assert not made.awake


@pytest.fixture
def image(folder: Path) -> Iterator[Callable[..., tuple[int, bytes]]]:
    """Makes image files; their descriptors are closed after the test."""
    fds: list[int] = []

    def make(nbytes: int = 3 * CHUNK_BYTES + 5, value: int = 7) -> tuple[int, bytes]:
        sources = [
            SourceTensor("w", "U8", (nbytes,), lambda place: place.__setitem__(slice(None), bytes([value]) * nbytes))
        ]
        plan = plan_image(sources, program=Program("numpy", {"a": 1}, b"the graph"))
        data = bytearray(plan.nbytes)
        plan.write_into(memoryview(data))
        fd = os.memfd_create("image")
        fds.append(fd)
        os.write(fd, data)
        return fd, bytes(data)

    yield make
    for fd in fds:
        os.close(fd)


@pytest.fixture
def serve(folder: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Served]]:
    """Have a keeper serve at one path, one after the other; ended after the test."""
    monkeypatch.setattr("trims.keeper.server._TICK_S", 0.01)
    made: list[Served] = []

    def start() -> Served:
        made.append(Served(FakeCuda(str(folder)), folder / "k.sock"))
        return made[-1]

    yield start
    for each in made:
        each.end()


@pytest.fixture
def served(serve: Callable[[], Served]) -> Served:
    """A keeper that serves."""
    return serve()
