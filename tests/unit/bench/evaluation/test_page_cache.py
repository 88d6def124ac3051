"""Files are dropped from the kernel's cache, and it is seen whether they were."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest
from trims_bench.evaluation import page_cache

if TYPE_CHECKING:
    from pathlib import Path

NBYTES = 4 << 20


def test_a_file_that_was_dropped_is_not_in_memory_until_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * NBYTES)
    assert page_cache.cached_share([str(path)]) == 1.0
    page_cache.drop([str(path)])
    if page_cache.cached_share([str(path)]) == 1.0:
        pytest.skip("the file system keeps its files in memory")
    assert page_cache.cached_share([str(path)]) == 0.0
    path.read_bytes()
    assert page_cache.cached_share([str(path)]) == 1.0


def test_pages_that_a_process_has_mapped_are_seen_to_stay(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * NBYTES)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        page_cache.drop([str(path)])
        assert page_cache.cached_share([str(path)]) == 1.0


def test_an_empty_file_and_no_file_have_nothing_in_memory(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.cached_share([str(tmp_path / "empty")]) == 0.0
    assert page_cache.cached_share([]) == 0.0
    with pytest.raises(FileNotFoundError):
        page_cache.drop([str(tmp_path / "no")])
