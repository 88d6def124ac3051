"""Settings of a process that a fork can be given: limits, priorities, processors and the mask of new files."""

from __future__ import annotations

import os
import resource
from typing import Any

_LIMITS = tuple(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))


def differences(pid: int) -> dict[str, Any]:
    """Return the settings of a process where they differ from this one's, for `surroundings.become`.

    Args:
        pid: Process of this user.

    Raises:
        OSError: The process has ended, or may not be looked at.
    """
    found: dict[str, Any] = {"umask": _umask(pid)}
    limits = {number: resource.prlimit(pid, number) for number in _LIMITS}
    own = {number: resource.prlimit(0, number) for number in _LIMITS}
    changed = {number: pair for number, pair in limits.items() if pair != own[number]}
    if changed:
        found["limits"] = changed
    policy, priority = os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority
    if (policy, priority) != (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority):
        found["scheduler"] = [policy, priority]
    niceness = os.getpriority(os.PRIO_PROCESS, pid)
    if niceness != os.getpriority(os.PRIO_PROCESS, 0):
        found["niceness"] = niceness
    affinity = os.sched_getaffinity(pid)
    if affinity != os.sched_getaffinity(0):
        found["affinity"] = sorted(affinity)
    oom = _oom(pid)
    if oom != _oom("self"):
        found["oom"] = oom
    return found


def _umask(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


def _oom(pid: int | str) -> int:
    with open(f"/proc/{pid}/oom_score_adj") as file:
        return int(file.read())
