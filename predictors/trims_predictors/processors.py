"""The processors that predictors compute on, and the share of them that each run has.

Frameworks start as many threads as there are processors. Several predictors that do so at once wait for each other:
OpenMP's threads turn in a loop while they wait, and take the processor from the thread that they wait for. Two
predictors on two processors took forty times as long as one after the other. So a run that begins while others go on
computes with fewer threads.
"""

from __future__ import annotations

import os
from pathlib import Path

from trims.memory.control_groups import groups

_ROOT = Path("/")


def processors(root: Path = _ROOT) -> int:
    """As many as this process may use at once, at least one: those of its affinity, or what its control groups allow.

    Args:
        root: Where `proc` and `sys` lie.
    """
    allowed = [_allowed(folder, version) for folder, version in groups("cpu", root)]
    return max(1, min([len(os.sched_getaffinity(0)), *(each for each in allowed if each is not None)]))


def share(threads: int, runs: int) -> int:
    """How many of `threads` each of so many runs has that go on at once: at least one."""
    return max(1, threads // max(1, runs))


def _allowed(folder: Path, version: int) -> int | None:
    """Processors that a control group allows; None if it does not limit them. Part of one is one more."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:  # the root has none, nor has a group without the controller
        return None
    return None if quota in ("max", "-1") else -(-int(quota) // int(period))
