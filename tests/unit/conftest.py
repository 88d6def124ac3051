"""Fixtures of the client's tests: a daemon of their own making, what it would grant, and weights on a fake device."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest
from fake_weights import DeviceShelf
from raw_door import Door
from trims_client.connection.channel import Channel

from trims.image.plan import SourceTensor, plan_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def door(folder: Path) -> Iterator[Door]:
    made = Door(folder)
    yield made
    made.end()


@pytest.fixture
def channel(door: Door) -> Iterator[Callable[[], Channel]]:
    made: list[Channel] = []

    def open_channel() -> Channel:
        made.append(Channel(door.path, "test"))
        return made[-1]

    yield open_channel
    for each in made:
        each.close()


@pytest.fixture
def segment() -> Iterator[Callable[..., int]]:
    """Descriptors of images."""
    made: list[int] = []

    def make(value: int = 7, cut: int = 0) -> int:
        def produce(place: memoryview) -> None:
            place[:] = bytes([value]) * 128

        plan = plan_image([SourceTensor("w", "U8", (128,), produce)])
        fd = os.memfd_create("trims-test")
        made.append(fd)
        data = bytearray(plan.nbytes)
        plan.write_into(memoryview(data))
        os.write(fd, data[: len(data) - cut])
        return fd

    yield make
    for fd in made:
        os.close(fd)


@pytest.fixture
def shelf(folder: Path) -> Iterator[DeviceShelf]:
    """A fake device that images are put on; by the end of the test nothing of it may be borrowed any more."""
    devices = folder / "cuda"
    devices.mkdir()
    made = DeviceShelf(devices)
    yield made
    gc.collect()
    made.end()
