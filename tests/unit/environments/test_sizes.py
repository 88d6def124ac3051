"""Bytes on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.environments.sizes import bytes_under

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_counts_once_and_links_are_not_followed(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"x" * 100_000)
    (inside / "file").write_bytes(b"x" * 50_000)
    alone = bytes_under(tmp_path / "a")
    (inside / "again").hardlink_to(inside / "file")
    (inside / "link").symlink_to(tmp_path / "outside")
    assert 50_000 <= alone <= bytes_under(tmp_path / "a") < 100_000
