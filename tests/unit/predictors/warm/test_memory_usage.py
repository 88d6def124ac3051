"""How much memory a process keeps from others: pages that are shared by fork count once, files do not count."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest
from trims_predictors.warm import memory_usage
from trims_predictors.warm.memory_usage import footprint, require_footprints

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

#: Much more than what else a process of tests takes and gives back meanwhile.
_BYTES = 256 << 20
_SLACK = 64 << 20


def fork_that_waits() -> tuple[int, int]:
    """A child that ends when the returned descriptor is closed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    return pid, writing


def test_memory_that_is_shared_by_fork_counts_once_in_both_together() -> None:
    with mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for offset in range(0, _BYTES, mmap.PAGESIZE):
            memory[offset] = 1
        alone = footprint(os.getpid())
        pid, writing = fork_that_waits()
        try:
            mine, its = footprint(os.getpid()), footprint(pid)
        finally:
            os.close(writing)
            os.waitpid(pid, 0)
    assert alone is not None
    assert mine is not None
    assert its is not None
    assert alone.own_bytes >= _BYTES
    assert its.share_bytes >= _BYTES // 2 - _SLACK
    assert abs(mine.share_bytes + its.share_bytes - alone.share_bytes) < _SLACK
    assert its.own_bytes < _SLACK, "its end gives back hardly anything"


def test_a_mapped_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(1 << 20) * (_BYTES >> 20))
    before = footprint(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[offset] for offset in range(0, _BYTES, mmap.PAGESIZE)) >= 0
        after = footprint(os.getpid())
    assert before is not None
    assert after is not None
    assert after.share_bytes - before.share_bytes < _SLACK


def test_a_process_that_is_gone_has_none() -> None:
    pid, writing = fork_that_waits()
    os.close(writing)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert footprint(pid) is None, "it has ended, and is not buried"
    os.waitpid(pid, 0)
    assert footprint(pid) is None


def test_a_bound_is_refused_where_the_kernel_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    require_footprints()
    monkeypatch.setattr(memory_usage, "_SHARE", "Pss_Of_A_Later_Kernel")
    with pytest.raises(ConfigError, match=r"--template-memory needs .* let templates go by --template-keep-alive-s"):
        require_footprints()
