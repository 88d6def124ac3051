"""How much memory a process may take: the machine's, or what its tightest control group allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trims.memory.available import allowed_bytes, available_bytes, missing_bytes, room_bytes

if TYPE_CHECKING:
    from pathlib import Path


def machine(root: Path, groups: str, **files: Any) -> Path:
    """A `/proc` and `/sys` with 1000 KiB of memory, 800 of them available."""
    written = {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n", "proc/self/cgroup": groups}
    for name, text in {**written, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def group(folder: str, limit: object, used: int, cache: int = 0) -> dict[str, Any]:
    files = {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 1\ninactive_file {cache}\nshmem 7\n"}
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_without_limits_it_is_the_machines(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/user\n", **group("sys/fs/cgroup/user", "max", 5))
    assert (allowed_bytes(root), available_bytes(root)) == (1000 << 10, 800 << 10)


def test_the_tightest_control_group_decides_whichever_it_is(tmp_path: Path) -> None:
    outer, inner = group("sys/fs/cgroup/a", 90_000, 60_000, 5_000), group("sys/fs/cgroup/a/b", 80_000, 10_000)
    root = machine(tmp_path, "0::/a/b\n", **outer, **inner)
    assert (allowed_bytes(root), available_bytes(root)) == (80_000, 35_000)
    assert room_bytes(root) == 35_000 - 90_000 // 16


def test_a_container_that_does_not_see_its_path_on_the_host_finds_its_own_limit(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/host/docker/123\n", **group("sys/fs/cgroup", 50_000, 60_000))
    assert (allowed_bytes(root), available_bytes(root)) == (50_000, 0)


def test_control_groups_of_the_first_version_count_as_well(tmp_path: Path) -> None:
    files = {"limit_in_bytes": 70_000, "usage_in_bytes": 30_000, "stat": "cache 9\ntotal_active_file 1000\n"}
    v1 = {f"sys/fs/cgroup/memory/c/memory.{name}": text for name, text in files.items()}
    root = machine(tmp_path, "9:cpu:/x\n4:memory:/c\n0::/\n", **v1)
    assert (allowed_bytes(root), available_bytes(root)) == (70_000, 41_000)


def test_the_limit_above_which_a_group_is_slowed_down_counts_as_its_limit(tmp_path: Path) -> None:
    files = {**group("sys/fs/cgroup/a", 90_000, 10_000), "sys/fs/cgroup/a/memory.high": 64_000}
    root = machine(tmp_path, "0::/a\n", **files)
    assert (allowed_bytes(root), available_bytes(root), missing_bytes(root)) == (64_000, 54_000, 0)


@pytest.mark.parametrize(("used", "missing"), [(59_000, 0), (60_000, 0), (61_000, 1000), (70_000, 10_000)])
def test_what_is_missing_keeps_a_part_of_the_limit_free_also_where_it_shrank(
    tmp_path: Path, used: int, missing: int
) -> None:
    files = {**group("sys/fs/cgroup/a", 64_000, used + 500, 500), **group("sys/fs/cgroup", 900_000, 10_000)}
    assert missing_bytes(machine(tmp_path, "0::/a\n", **files)) == missing


def test_a_group_that_goes_meanwhile_or_keeps_no_count_limits_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/a\n", **{"sys/fs/cgroup/a/memory.max": 5_000})
    assert (available_bytes(root), missing_bytes(root)) == (800 << 10, 0)


def test_this_machine_has_some() -> None:
    assert 0 < available_bytes() <= allowed_bytes()


def test_a_machine_that_does_not_say_how_much_it_has_is_an_error(tmp_path: Path) -> None:
    root = machine(tmp_path, "", **{"proc/meminfo": "MemTotal: 1000 kB\n"})
    assert allowed_bytes(root) == 1000 << 10
    with pytest.raises(OSError, match="/proc/meminfo has no MemAvailable"):
        available_bytes(root)
