"""Which mount point a path lies under, told from the mount table alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trims.store import mounts
from trims.store.mounts import Mounts, mount_of

if TYPE_CHECKING:
    import pytest

TABLE = """\
22 1 0:20 / / rw - ext4 /dev/a rw
23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw
24 22 0:22 / /mnt/with\\040blank rw - nfs server:/x rw
25 24 0:23 / /mnt/with\\040blank/inner rw - nfs server:/y rw
"""


def test_the_longest_mount_point_counts_and_names_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    monkeypatch.setattr(mounts, "_TABLE", str(table))
    made = Mounts()
    assert made.point_of("/dev/shm/a") == "/dev/shm"
    assert made.point_of("/dev/shmore/a") == "/"
    assert made.point_of("/mnt/with blank/a") == "/mnt/with blank"
    assert made.point_of("/mnt/with blank/inner/a") == "/mnt/with blank/inner"
    assert made.point_of("/mnt/with blank/inner") == "/mnt/with blank/inner"
    assert made.point_of("/elsewhere") == "/"


def test_a_path_of_this_machine_has_a_mount_point() -> None:
    assert mount_of(Path("/proc/self/maps")) == "/proc"
    assert str(Path(__file__).absolute()).startswith(mount_of(Path(__file__)).rstrip("/"))
