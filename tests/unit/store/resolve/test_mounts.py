"""Which mount point a path lies under, found from the mount table alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trims.store.resolve import mounts
from trims.store.resolve.mounts import Mounts, mount_of, mount_of_now

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


def test_the_table_is_read_by_a_call_that_may_wait_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    monkeypatch.setattr(mounts, "_TABLE", str(table))
    made = Mounts()
    assert made.point_of_now("/dev/shm/a") is None
    assert made.point_of("/dev/shm/a") == "/dev/shm"
    table.write_text("")
    assert made.point_of_now("/dev/shm/a") == made.point_of("/dev/shm/a") == "/dev/shm"


class Changes:
    """Changes that the kernel reports on the table's open file: each once."""

    def __init__(self) -> None:
        self.untold: list[tuple[int, int]] = []

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        assert timeout_ms == 0
        told, self.untold = self.untold, []
        return told


def test_a_table_that_has_changed_is_not_believed_until_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    monkeypatch.setattr(mounts, "_TABLE", str(table))
    made, changes = Mounts(), Changes()
    made.point_of("/")
    made._changes = changes  # type: ignore[assignment]
    table.write_text(TABLE.replace("/dev/shm", "/dev"))
    assert made.point_of_now("/dev/shm/a") == "/dev/shm"
    changes.untold.append((0, 0))
    assert [made.point_of_now("/dev/shm/a") for _ in range(2)] == [None, None]
    assert made.point_of("/dev/shm/a") == made.point_of_now("/dev/shm/a") == "/dev"


def test_a_call_that_may_not_wait_does_not_wait_for_a_reader() -> None:
    made = Mounts()
    made.point_of("/")
    with made._lock:
        assert made.point_of_now("/") is None
    assert made.point_of_now("/") == "/"


def test_a_path_of_this_machine_has_a_mount_point() -> None:
    assert mount_of(Path("/proc/self/maps")) == mount_of_now(Path("/proc/self/maps")) == "/proc"
    assert str(Path(__file__).absolute()).startswith(mount_of(Path(__file__)).rstrip("/"))
