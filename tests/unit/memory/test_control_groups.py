"""Which control groups a process is in, of either version."""

from __future__ import annotations

from pathlib import Path

import pytest

from trims.memory.control_groups import groups


@pytest.mark.parametrize(
    ("told", "controller", "expected"),
    [
        ("0::/a/b\n", "cpu", [("a/b", 2), ("a", 2), ("", 2)]),
        ("0::/\n", "cpu", [("", 2)]),
        ("4:cpu,cpuacct:/a\n3:memory:/m\n0::/\n", "cpu", [("cpu/a", 1), ("cpu", 1), ("", 2)]),
        ("4:cpuacct:/a\n", "cpu", []),
        ("3:memory:/a:b\n", "memory", [("memory/a:b", 1), ("memory", 1)]),
    ],
)
def test_folders_go_from_the_processes_own_group_up_to_the_root(
    tmp_path: Path, told: str, controller: str, expected: list[tuple[str, int]]
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(told)
    base = tmp_path / "sys/fs/cgroup"
    assert list(groups(controller, tmp_path)) == [(base / folder, version) for folder, version in expected]


@pytest.mark.parametrize(
    ("mounts", "told", "expected"),
    [
        (
            "/docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "4:memory:/docker/1/s\n",
            ["memory/s", "memory"],
        ),
        ("/ /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw", "0::/a\n", ["unified/a", "unified"]),
        ("/ /sys/fs/cgroup/m rw - cgroup cgroup rw,cpu,memory", "4:memory:/a\n", ["m/a", "m"]),
        ("/ /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", "4:memory:/a\n", ["memory/a", "memory"]),
    ],
    ids=["a part of the tree", "two versions", "several controllers", "mounted nowhere"],
)
def test_groups_are_looked_for_where_they_are_mounted(
    tmp_path: Path, mounts: str, told: str, expected: list[str]
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(told)
    (tmp_path / "proc/self/mountinfo").write_text(f"31 23 0:28 / / rw - tmpfs tmpfs rw\n35 31 0:32 {mounts}\n")
    base = tmp_path / "sys/fs/cgroup"
    assert [folder for folder, _ in groups("memory", tmp_path)] == [base / each for each in expected]


def test_this_process_is_in_some() -> None:
    assert all(version in (1, 2) for _, version in groups("memory", Path("/")))
