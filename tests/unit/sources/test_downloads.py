"""The folder of downloads within its capacity: what goes, and what stays."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trims.sources.downloads import Downloads, bytes_in

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    """Three sets of 1 MiB, `a` used first; room for two."""
    made = Downloads(tmp_path / "downloads", 2 * MIB + MIB // 2)
    for at_s, name in enumerate("abc", 1):
        (made.folder / name).mkdir(parents=True)
        (made.folder / name / "m").write_bytes(os.urandom(MIB))
        os.utime(made.folder / name, (at_s, at_s))
    return made


def names(downloads: Downloads) -> list[str]:
    return [folder.name for folder, _ in downloads.sets()]


def test_sets_are_listed_by_their_last_use_with_what_they_take(downloads: Downloads) -> None:
    assert names(downloads) == ["a", "b", "c"]
    downloads.used(downloads.folder / "a")
    assert names(downloads) == ["b", "c", "a"]
    assert all(MIB <= nbytes < 2 * MIB for _, nbytes in downloads.sets())


def test_what_was_used_least_recently_goes_first_and_no_more_than_needed(downloads: Downloads) -> None:
    downloads.keep_within()
    assert names(downloads) == ["b", "c"]
    downloads.keep_within()
    assert names(downloads) == ["b", "c"]


def test_what_is_busy_or_read_stays(downloads: Downloads) -> None:
    downloads.connect(lambda folder: folder.name == "b")
    downloads.keep_within(busy=[downloads.folder / "a"])
    assert names(downloads) == ["a", "b"]


def test_room_is_made_until_there_is_enough_and_it_says_whether_any_was(
    downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [0]
    monkeypatch.setattr(Downloads, "_free", lambda self: free[0])
    real = Downloads.remove

    def remove(self: Downloads, folder: Path) -> int:
        free[0] += MIB
        return real(self, folder)

    monkeypatch.setattr(Downloads, "remove", remove)
    assert downloads.make_room(2 * MIB)
    assert names(downloads) == ["c"]
    assert not downloads.make_room(2 * MIB)
    assert not downloads.make_room(9 * MIB, busy=[downloads.folder / "c"])


def test_a_folder_of_others_and_links_are_left_alone(downloads: Downloads, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "m").write_bytes(b"x" * MIB)
    (downloads.folder / "link").symlink_to(tmp_path / "hub")
    before = (tmp_path / "hub").stat().st_mtime_ns
    downloads.used(tmp_path / "hub")
    downloads.keep_within()
    assert names(downloads) == ["b", "c"]
    assert (tmp_path / "hub").stat().st_mtime_ns == before
    assert (tmp_path / "hub" / "m").exists()


def test_without_any_download_there_is_nothing_to_remove(tmp_path: Path) -> None:
    made = Downloads(tmp_path / "none", 0)
    assert made.sets() == []
    assert not made.make_room(1)
    made.keep_within()
    assert made.remove(tmp_path / "none") == 0
    assert bytes_in(tmp_path / "none") == 0
