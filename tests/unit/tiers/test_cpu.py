"""The CPU tier: segments of a driver, large pages for drafts that fill some, and names that cannot be listed."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CapacityError
from trims.core.place import CPU
from trims.memory.mapping import LARGE_PAGE_BYTES
from trims.memory.memfd import SealedMemfd
from trims.memory.shm import PosixShm
from trims.testing.tiers import KEY, an_image, put
from trims.tiers.cpu import CpuTier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.memory.segments import Segment

DATA = an_image(5000)


@pytest.fixture
def tier(folder: Path) -> Iterator[CpuTier]:
    made = CpuTier(PosixShm("trims-cpu", folder), 1 << 30)
    yield made
    made.close()


def names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("trims-cpu"))


def test_a_sealed_segment_is_named_by_prefix_key_and_digest(tier: CpuTier, folder: Path) -> None:
    extent = put(tier, DATA)
    assert names(folder) == [extent.label] == [f"trims-cpu.{KEY}.{extent.digest}"]
    assert (extent.named, extent.place) == (True, CPU)


def test_a_segment_without_a_name_says_so(folder: Path) -> None:
    tier = CpuTier(SealedMemfd("trims-cpu"), 1 << 30)
    extent = put(tier, DATA)
    assert not extent.named
    tier.free(extent)


@pytest.mark.parametrize(("nbytes", "large_pages", "reserved"), [
    (LARGE_PAGE_BYTES, True, True), (LARGE_PAGE_BYTES - 1, True, False), (LARGE_PAGE_BYTES, False, False),
])  # fmt: skip
def test_only_a_draft_that_fills_a_large_page_is_offered_some(
    folder: Path, nbytes: int, large_pages: bool, reserved: bool
) -> None:
    tier = CpuTier(PosixShm("trims-cpu", folder), 1 << 30, large_pages=large_pages)
    draft = tier.create(KEY, 1, nbytes, allocate=False)
    assert (draft.pages is not None) is reserved
    tier.abort(draft)
    assert names(folder) == []


def test_a_draft_whose_memory_cannot_be_reserved_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PosixShm("trims-cpu", folder)

    def full(segment: Segment) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(driver, "allocate", full)
    with pytest.raises(CapacityError, match="is full"):
        CpuTier(driver, 1 << 30).create(KEY, 1, 4096, allocate=True)
    assert names(folder) == []


def test_a_driver_whose_names_cannot_be_listed_stops_no_daemon(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = PosixShm("trims-cpu", folder)
    tier = CpuTier(driver, 1 << 30)

    def fails() -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(driver, "names", fails)
    assert list(tier.scan()) == []
    assert tier.skipped == 1
    assert "every segment at cpu is left alone: Input/output error" in caplog.text


def test_a_segment_that_goes_while_it_is_looked_for_is_neither_found_nor_skipped(
    tier: CpuTier, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = PosixShm("trims-cpu", folder)
    label = put(tier, DATA).label
    tier.close()
    monkeypatch.setattr(driver, "names", lambda: [label, f"trims-cpu.{'b' * 64}.{'c' * 64}"])
    second = CpuTier(driver, 1 << 30)
    (found,) = second.scan()
    assert (found.label, second.skipped) == (label, 0)
    second.free(found)
    assert names(folder) == []


def test_a_segment_that_is_no_image_is_removed_with_the_reason(
    tier: CpuTier, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    label = put(tier, b"\7" * 4).label
    tier.close()
    assert list(tier.scan()) == []
    assert names(folder) == []
    assert f"segment {label} is removed: it is too short to be an image" in caplog.text


def test_a_segment_that_is_freed_twice_is_gone_once(tier: CpuTier, folder: Path) -> None:
    extent = put(tier, DATA)
    for _ in range(2):
        tier.free(extent)
    assert names(folder) == []
