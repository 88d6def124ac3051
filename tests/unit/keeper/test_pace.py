"""The choice between ways in: by measurement, for each kind of source and size, and never settled for good."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trims.keeper.pace import TELLING_BYTES, WayCosts, in_shared_memory

if TYPE_CHECKING:
    from pathlib import Path

WAYS = ("staged", "registered")


def test_every_way_is_measured_once_and_the_faster_one_is_kept() -> None:
    costs = WayCosts()
    for way, took_s in (("staged", 2.0), ("registered", 1.0)):
        assert costs.choose(WAYS, TELLING_BYTES, shared=True) == way
        costs.record(way, TELLING_BYTES, took_s, shared=True)
    assert [costs.choose(WAYS, TELLING_BYTES, shared=True) for _ in range(20)] == ["registered"] * 20


def test_a_slower_way_is_tried_again_now_and_then_and_may_win() -> None:
    costs = WayCosts()
    costs.record("staged", TELLING_BYTES, 1.0, shared=True)
    costs.record("registered", TELLING_BYTES, 2.0, shared=True)
    chosen = [costs.choose(WAYS, TELLING_BYTES, shared=True) for _ in range(200)]
    assert 1 <= chosen.count("registered") < 20
    costs.record("registered", TELLING_BYTES, 0.5, shared=True)
    assert costs.choose(WAYS, TELLING_BYTES, shared=True) == "registered"


def test_sources_and_sizes_are_measured_apart() -> None:
    costs = WayCosts()
    for way, took_s in (("staged", 1.0), ("registered", 2.0)):
        costs.record(way, TELLING_BYTES, took_s, shared=True)
    assert costs.choose(WAYS, 64 * TELLING_BYTES, shared=True) == "staged", "the first way, as nothing is known"
    costs.record("staged", 64 * TELLING_BYTES, 1.0, shared=True)
    assert costs.choose(WAYS, 64 * TELLING_BYTES, shared=True) == "registered"
    assert costs.of(TELLING_BYTES, shared=False) == {}
    assert set(costs.of(TELLING_BYTES + 1, shared=True)) == set(WAYS), "about the same size"


def test_a_small_image_goes_the_first_way_and_teaches_nothing() -> None:
    costs = WayCosts()
    costs.record("staged", TELLING_BYTES - 1, 1.0, shared=True)
    assert costs.of(TELLING_BYTES - 1, shared=True) == {}
    assert [costs.choose(WAYS, TELLING_BYTES - 1, shared=True) for _ in range(3)] == ["staged"] * 3
    assert costs.choose(("staged",), TELLING_BYTES, shared=False) == "staged"


@pytest.mark.parametrize("flags", [0, os.MFD_ALLOW_SEALING])
def test_shared_memory_is_told_from_a_file_on_a_disk(tmp_path: Path, flags: int) -> None:
    memory = os.memfd_create("trims-test", flags)
    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as file, open("/dev/shm", "rb", opener=_unnamed) as segment:
        assert in_shared_memory(memory)
        assert in_shared_memory(segment.fileno())
        assert not in_shared_memory(file.fileno())
    os.close(memory)


def _unnamed(folder: str, flags: int) -> int:
    del flags
    return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
