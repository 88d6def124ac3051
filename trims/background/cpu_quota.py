"""Share of a processor that a copier may take: a quarter, and a tenth while other programs compute.

Threads of linear algebra wait by spinning and yielding, and yield to a process of the lowest priority as to any other.
So the priority alone does not keep a copier from delaying them: how often it runs does.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Share of one processor for a copier while no other program computes.
ALONE = 0.25
#: Share of one processor for a copier while other programs compute.
BESIDE_OTHERS = 0.1
#: Share of one processor in use by other processes from which on they are said to compute. More than another copier
#: takes in the kernel, whose user time is counted apart as that of a process with a low priority.
_OTHERS = 0.35
#: Seconds between two looks at what other processes use.
_LOOK_S = 0.5
_STAT = "/proc/stat"


class CpuQuota:
    """Quota of one processor for one process.

    Args:
        busy_s: Processor seconds used by all processes since some moment, without user time of a low priority.
        own_s: Processor seconds used by this process. More, such as its user time, does no harm.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        busy_s: Callable[[], float] | None = None,
        own_s: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._busy_s = busy_s or _busy_s
        self._own_s = own_s or (lambda: os.times().system)
        self._clock = clock
        self._looked_at_s = clock()
        self._used_s = self._others_s()
        self._now = BESIDE_OTHERS  # until the first look

    def now(self) -> float:
        """Return the share, looked up twice a second; the smaller one where the kernel's counts cannot be read."""
        passed_s = self._clock() - self._looked_at_s
        if passed_s >= _LOOK_S:
            self._looked_at_s += passed_s
            before_s, self._used_s = self._used_s, self._others_s()
            self._now = ALONE if self._used_s - before_s < _OTHERS * passed_s else BESIDE_OTHERS
        return self._now

    def _others_s(self) -> float:
        """Return processor seconds of other processes; NaN, with which no comparison holds, if unknown."""
        try:
            return self._busy_s() - self._own_s()
        except (OSError, ValueError, IndexError):
            return float("nan")


def _busy_s() -> float:
    """Return processor seconds from the kernel's counts: user, nice, system, idle, iowait, irq, softirq."""
    with open(_STAT, encoding="ascii") as file:
        ticks = [int(each) for each in file.readline().split()[1:8]]
    user, system, irq, softirq = ticks[0], ticks[2], ticks[5], ticks[6]
    return (user + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
