"""Room for segments: no more of it is promised than there is, by either driver."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import NoSpaceError
from trims.memory import room
from trims.memory.memfd import SealedMemfd
from trims.memory.shm import PosixShm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.memory.segments import SegmentDriver

MIB = 1 << 20


@pytest.fixture(params=["shm", "memfd"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentDriver]:
    """A driver on a machine with 10 MiB for images, which must leave nothing behind."""
    monkeypatch.setattr(room, "room_bytes", lambda: 10 * MIB)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="trims-t-") as made:
        yield PosixShm("trims-test", Path(made)) if request.param == "shm" else SealedMemfd("trims-test")
        assert os.listdir(made) == []


def test_more_than_there_is_room_for_is_refused_with_the_numbers(driver: SegmentDriver) -> None:
    needed = rf"memory is full: 11\.0 MiB \({11 * MIB} bytes\) needed, 10\.0 MiB available"
    with pytest.raises(NoSpaceError, match=needed) as caught:
        driver.create("m", 11 * MIB)
    assert caught.value.room_bytes == 10 * MIB
    driver.discard(driver.create("m", 10 * MIB))


def test_what_unfinished_ones_will_take_is_spoken_for_until_it_is_taken(driver: SegmentDriver) -> None:
    first = driver.create("first", 6 * MIB)
    with pytest.raises(NoSpaceError, match=r"6\.0 MiB of them spoken for") as caught:
        driver.create("second", 6 * MIB)
    assert caught.value.room_bytes == 4 * MIB
    driver.allocate(first)  # what is taken shows in what is available
    driver.discard(driver.create("second", 6 * MIB))
    driver.discard(first)
    driver.discard(driver.create("third", 10 * MIB))


def test_a_sealed_segment_is_spoken_for_no_longer(driver: SegmentDriver) -> None:
    sealed = driver.seal(driver.create("m", 6 * MIB), "a" * 64, "b" * 64)
    driver.discard(driver.create("other", 10 * MIB))
    sealed.close()
    driver.remove(sealed.name)


def test_the_limit_of_a_control_group_is_named_with_what_raises_it(
    driver: SegmentDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "group_limit", lambda: "its control group allows 600 MiB: raise it")
    with pytest.raises(NoSpaceError, match=r"lower the cpu tier's capacity; its control group allows 600 MiB"):
        driver.create("m", 11 * MIB)
