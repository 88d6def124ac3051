"""Mapping files: aligned where it pays, read-only unless asked, and gone with the last view."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ClosedError
from trims.memory import mapping
from trims.memory.mapping import LARGE_PAGE_BYTES, FileMapping

if TYPE_CHECKING:
    from collections.abc import Iterator


NBYTES = 3 * LARGE_PAGE_BYTES + 5 * 4096 + 7


SHM = Path("/dev/shm")


@pytest.fixture
def segment() -> Iterator[int]:
    with tempfile.TemporaryFile(dir=SHM) as file:
        file.truncate(NBYTES)
        yield file.fileno()


def test_an_aligned_mapping_ends_with_its_last_view_and_says_so_after_it_is_gone(segment: int) -> None:
    inode = f" {os.fstat(segment).st_ino} "

    def is_mapped() -> bool:
        return inode in Path("/proc/self/maps").read_text()

    told: list[bool] = []
    mapped = FileMapping(segment, NBYTES, align=True, on_unmap=lambda: told.append(is_mapped()))
    part = mapped.view()[4096:8192]
    mapped.close()
    assert is_mapped()
    assert told == []
    del part
    assert told == [False]
    assert not is_mapped()


def test_an_aligned_mapping_that_cannot_be_made_leaves_nothing(segment: int) -> None:
    before = Path("/proc/self/maps").read_text().count("\n")
    with tempfile.TemporaryFile() as unreadable:
        write_only = os.open(f"/proc/self/fd/{unreadable.fileno()}", os.O_WRONLY)
        try:
            with pytest.raises(PermissionError):
                FileMapping(write_only, NBYTES, align=True)
        finally:
            os.close(write_only)
    assert Path("/proc/self/maps").read_text().count("\n") == before


@pytest.mark.parametrize("align", [False, True])
def test_a_mapping_is_read_only_unless_it_is_asked_for_more(segment: int, align: bool) -> None:
    os.pwrite(segment, b"abc", 0)
    shared = FileMapping(segment, NBYTES, align=align)
    written = FileMapping(segment, NBYTES, align=align, write=True)
    private = FileMapping(segment, NBYTES, align=align, private=True)
    with pytest.raises(TypeError, match=r"cannot modify read-only memory|read-only"):
        shared.view()[0] = 1
    written.view()[0] = ord("x")
    private.view()[1] = ord("y")
    assert bytes(shared.view()[:3]) == b"xbc"
    assert bytes(private.view()[:3]) == b"xyc"
    assert os.pread(segment, 3, 0) == b"xbc"
    assert {len(mapped.view()) for mapped in (shared, written, private)} == {NBYTES}
    for mapped in (shared, written, private):
        mapped.close()


def test_large_files_are_aligned_and_small_ones_are_not(segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_WORTH_BYTES", NBYTES)
    large, small = FileMapping(segment, NBYTES), FileMapping(segment, NBYTES - 1)
    assert large.address % LARGE_PAGE_BYTES == 0
    with pytest.raises(ClosedError, match="only an open, aligned mapping has an address"):
        _ = small.address
    for mapped in (large, small):
        mapped.close()


@pytest.mark.parametrize("align", [False, True])
def test_a_closed_mapping_gives_no_view_and_tells_once_that_it_is_gone(segment: int, align: bool) -> None:
    told: list[int] = []
    mapped = FileMapping(segment, NBYTES, align=align, on_unmap=lambda: told.append(1))
    view = mapped.view()
    mapped.close()
    assert told == []
    assert len(view) == NBYTES
    del view
    mapped.close()
    assert told == [1]
    with pytest.raises(ClosedError, match="this mapping is closed"):
        mapped.view()


def test_more_than_the_file_has_is_refused_by_the_kernel(segment: int) -> None:
    with pytest.raises(ValueError, match="greater than file size"):
        FileMapping(segment, NBYTES + mmap.PAGESIZE, align=False)


def test_another_file_is_put_under_an_aligned_mapping_and_its_views(segment: int) -> None:
    with tempfile.TemporaryFile(dir=SHM) as other:
        os.write(segment, b"old")
        other.write(b"new")
        other.truncate(NBYTES)
        mapped = FileMapping(segment, NBYTES, align=True)
        view, address = mapped.view(), mapped.address
        assert mapped.exchange(other.fileno())
        assert (bytes(view[:3]), mapped.address) == (b"new", address)
        mapped.close()
        assert mapped.exchange(segment), "a view is left"
        assert bytes(view[:3]) == b"old"
        del view
        assert not mapped.exchange(segment), "nothing is mapped any more"


@pytest.mark.parametrize("how", [{"align": False}, {"write": True}, {"private": True}])
def test_mappings_that_can_be_written_or_are_not_aligned_are_not_exchanged(how: dict[str, bool], segment: int) -> None:
    mapped = FileMapping(segment, NBYTES, **{"align": True, **how})
    assert not mapped.exchange(segment)
    mapped.close()


def test_a_file_that_cannot_be_read_is_not_put_under_a_mapping(segment: int) -> None:
    os.write(segment, b"old")
    mapped = FileMapping(segment, NBYTES, align=True)
    view = mapped.view()
    with pytest.raises(OSError, match="Bad file descriptor"):
        mapped.exchange(-1)
    assert bytes(view[:3]) == b"old"
