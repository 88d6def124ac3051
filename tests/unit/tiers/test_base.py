"""Base of all tiers: how a file is distinguished from what it was."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trims.tiers.base import identity_of

if TYPE_CHECKING:
    from pathlib import Path


def _identity(path: Path) -> tuple[int, ...]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return identity_of(fd)
    finally:
        os.close(fd)


def test_a_file_has_another_identity_once_it_was_touched_or_replaced(tmp_path: Path) -> None:
    path, other = tmp_path / "image", tmp_path / "other"
    path.write_bytes(b"bytes")
    first = _identity(path)
    assert first == _identity(path)
    os.utime(path, ns=(1, 1))
    touched = _identity(path)
    other.write_bytes(b"bytes")
    os.utime(other, ns=(1, 1))
    other.rename(path)
    assert len({first, touched, _identity(path)}) == 3


def test_an_identity_names_device_inode_length_and_both_times(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"bytes")
    status = path.stat()
    expected = (status.st_dev, status.st_ino, 5, status.st_mtime_ns, status.st_ctime_ns)
    assert _identity(path) == expected
