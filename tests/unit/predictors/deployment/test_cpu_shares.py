"""How many processors predictors compute on, and how runs divide them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from trims_predictors.deployment.cpu_shares import Computing, processors, share

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def machine(root: Path, groups: str, **files: str) -> Path:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 4)],
)
def test_a_containers_limit_counts_and_a_part_of_a_processor_is_one(
    four: None, tmp_path: Path, quota: str, expected: int
) -> None:
    root = machine(tmp_path, "0::/host/docker/123\n", **{"sys/fs/cgroup/cpu.max": f"{quota}\n"})
    assert processors(root) == expected


def test_the_tightest_of_the_control_groups_counts(four: None, tmp_path: Path) -> None:
    limits = {"sys/fs/cgroup/a/cpu.max": "300000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}
    assert processors(machine(tmp_path, "0::/a/b\n", **limits)) == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 4), ("300000", 3)])
def test_control_groups_of_the_first_version_count_as_well(
    four: None, tmp_path: Path, quota: str, expected: int
) -> None:
    folder = "sys/fs/cgroup/cpu/c"
    files = {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert processors(machine(tmp_path, "3:memory:/m\n1:cpu:/c\n", **files)) == expected


def test_without_limits_the_affinity_counts(four: None, tmp_path: Path) -> None:
    assert processors(machine(tmp_path, "0::/\n")) == 4


def test_this_machine_has_some() -> None:
    assert 1 <= processors() <= len(os.sched_getaffinity(0))


def test_each_run_has_an_equal_share_and_at_least_one_thread() -> None:
    assert [share(8, runs) for runs in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]


def test_a_predictor_that_has_just_answered_counts_for_a_moment() -> None:
    now_s, changes = [100.0], []
    computing = Computing(lambda: changes.append(computing.now), clock=lambda: now_s[0])
    with computing.runs(1, "torch"), computing.runs(2, "torch"), computing.runs(3, "numpy"):
        assert (len(computing), computing.now) == (2, 2)
    assert (len(computing), computing.now, changes) == (2, 0, [1, 2, 1, 0])
    with computing.runs(1, "torch"):
        assert (len(computing), computing.now) == (2, 1)
        now_s[0] += 1.0
        assert (len(computing), computing.now) == (1, 1)
    now_s[0] += 1.0
    assert len(computing) == 0
