"""The checks of what an earlier daemon left: at a glance, byte by byte, and what could not be looked at."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import threading
from typing import TYPE_CHECKING

import pytest
from damages import DAMAGES
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import DrainingError, ImageError
from trims.core.place import CPU, DISK
from trims.testing.tiers import an_image, put
from trims.tiers import checking
from trims.tiers.base import identity_of
from trims.tiers.checking import Skipped, check_ends, check_wanted, verify_bytes
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = an_image(20_000)


@pytest.fixture
def tier(folder: Path) -> Iterator[DiskTier]:
    made = DiskTier(folder / "images", 1 << 20)
    yield made
    made.close()


def checked(folder: Path, data: bytes) -> None:
    path = folder / "file"
    path.write_bytes(data)
    with path.open("rb") as file:
        check_ends(file.fileno(), len(data))


def test_an_image_passes_the_look_at_its_ends_whatever_its_tensors_hold(folder: Path) -> None:
    checked(folder, DATA)
    checked(folder, DATA[:-100] + bytes(100))


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (b"", "it is too short to be an image"),
        (DATA[:7], "it is too short to be an image"),
        ((1 << 40).to_bytes(8, "little") + DATA[8:], "its header claims more bytes than the file has"),
        (DATA[:-1], rf"its index describes {len(DATA)} bytes, the file has {len(DATA) - 1}"),
        (DATA + b"x", rf"its index describes {len(DATA)} bytes, the file has {len(DATA) + 1}"),
    ],
    ids=["empty", "seven bytes", "a long header", "one byte less", "one byte more"],
)
def test_the_look_at_the_ends_says_what_is_wrong(folder: Path, damaged: bytes, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        checked(folder, damaged)


@given(st.integers(0, len(DATA) - 1))
def test_no_image_that_was_cut_short_passes_the_look_at_its_ends(length: int) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(DATA[:length])
        file.flush()
        with pytest.raises(ImageError):
            check_ends(file.fileno(), length)


def test_the_whole_check_tells_each_piece_and_takes_the_identity_of_its_beginning(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "CHUNK_BYTES", 8192)
    extent = put(tier, DATA)
    extent.fresh = False
    done: list[int] = []
    verify_bytes(extent, pace=done.append)
    assert done == [8192, 16384, len(DATA)]
    assert (extent.fresh, extent.identity) == (True, identity_of(extent.fd))


def test_a_file_touched_during_the_check_is_not_taken_for_the_one_checked(tier: DiskTier) -> None:
    extent = put(tier, DATA)
    verify_bytes(extent, pace=lambda _: os.utime(extent.label, ns=(1, 1)))
    assert extent.identity != identity_of(extent.fd)


@pytest.mark.parametrize(
    ("how", "said"),
    [("a bit flipped", "its bytes hash to .* was sealed: they were changed"), ("cut short", "were sealed")],
)
def test_the_whole_check_names_the_file_and_what_differs(tier: DiskTier, how: str, said: str) -> None:
    extent = put(tier, DATA)
    extent.fresh = False
    DAMAGES[how](extent)
    with pytest.raises(ImageError, match=f"{re.escape(extent.label)}.*{said}"):
        verify_bytes(extent)
    assert not extent.fresh


def test_a_check_goes_on_until_the_daemon_ends(tier: DiskTier) -> None:
    extent, ending = put(tier, DATA), threading.Event()
    check_wanted(extent, None)
    check_wanted(extent, ending)
    ending.set()
    with pytest.raises(DrainingError, match=f"{re.escape(extent.label)} was not verified to its end"):
        check_wanted(extent, ending)


def test_what_was_left_alone_is_told_in_one_line_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    skipped = Skipped(CPU)
    for name, code in (("one", errno.EMFILE), ("two", errno.EMFILE), ("three", errno.EIO)):
        skipped.add(name, OSError(code, os.strerror(code)))
    assert len(skipped) == 3
    skipped.log_all()
    assert [record.getMessage() for record in caplog.records] == [
        "2 at cpu are left alone, such as one: Too many open files",
        "three at cpu is left alone: Input/output error",
    ]


def test_a_scan_that_left_nothing_alone_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    skipped = Skipped(DISK)
    skipped.log_all()
    assert (len(skipped), caplog.records) == (0, [])
