"""The processors that predictors compute on, and the share of them that each run has.

Frameworks start as many threads as there are processors. Several predictors that do so at once wait for each other:
OpenMP's threads turn in a loop while they wait, and take the processor from the thread that they wait for. Two
predictors on two processors took forty times as long as one after the other. So a run that begins while others go on
computes with fewer threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trims.memory.control_groups import groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOT = Path("/")
#: Seconds after a run, for which its predictor counts: clients that ask again at once do so within them.
_JUST_S = 0.05
#: Seconds that a load counts as computing. A longer load waits for its weights.
_LOADS_S = 5.0


def processors(root: Path = _ROOT) -> int:
    """Return how many processors this process may use at once, by its affinity and its control groups; 1 or more.

    Args:
        root: Where `proc` and `sys` lie.
    """
    allowed = [_allowed(folder, version) for folder, version in groups("cpu", root)]
    return max(1, min([len(os.sched_getaffinity(0)), *(each for each in allowed if each is not None)]))


def share(threads: int, runs: int) -> int:
    """Return how many of `threads` each of so many runs at once has: at least one."""
    return max(1, threads // max(1, runs))


class Computing:
    """Predictors that load or answer just now, and so share the processors. Used in one event loop.

    Those of numpy do not count: they have one thread each, and most of them compute little.

    A predictor that has just answered counts as well: clients that ask again at once keep it busy, and a run that took
    all processors in the moment between would compute beside its next one.

    Args:
        changed: Called whenever the number of those that compute has changed.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic) -> None:
        self._predictors: set[int] = set()
        self._changed = changed
        self._clock = clock
        #: Predictors that do not compute any more, and since when; at most as many as there are predictors.
        self._left_s: dict[int, float] = {}

    def __len__(self) -> int:
        if self._left_s:
            since_s = self._clock() - _JUST_S
            self._left_s = {each: left_s for each, left_s in self._left_s.items() if left_s >= since_s}
        return len(self._predictors) + len(self._left_s)

    @property
    def now(self) -> int:
        """Return how many compute at this moment."""
        return len(self._predictors)

    @contextlib.contextmanager
    def runs(self, predictor: int, framework: str) -> Iterator[None]:
        """Count a predictor while it answers."""
        if framework == "numpy":
            yield
            return
        self._predictors.add(predictor)
        self._left_s.pop(predictor, None)
        self._changed()
        try:
            yield
        finally:
            self._discard(predictor)

    def _discard(self, predictor: int) -> None:
        if predictor in self._predictors:
            self._predictors.discard(predictor)
            self._left_s[predictor] = self._clock()
            self._changed()

    @contextlib.contextmanager
    def loads(self, predictor: int, framework: str) -> Iterator[None]:
        """Count a predictor while it loads its model, for as long as a load may compute."""
        with self.runs(predictor, framework):
            timer = asyncio.get_running_loop().call_later(_LOADS_S, self._discard, predictor)
            try:
                yield
            finally:
                timer.cancel()


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
