"""Growth of deployments whose manifest states no `instances`: when requests have waited long enough for a predictor.

A further predictor shares the weights and is forked in tens of milliseconds, so one request that takes minutes need not
hold back others. It computes on the same processors, though: beyond one for each of them it is worth its start only
where runs take much longer than others of the model do.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.units import format_bytes
from trims.memory.available import allowed_bytes, room_bytes
from trims_predictors.deployment.cpu_shares import processors
from trims_predictors.tasks import Background
from trims_predictors.warm.memory_usage import footprint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trims_predictors.deployment.deployment import Deployment, Settings
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.pool.dispatch import Running
    from trims_predictors.pool.events import Step
    from trims_predictors.pool.scheduler import Schedule

_log = logging.getLogger(__name__)

#: Predictors at once for each processor, where no number is stated.
_FOR_EACH_PROCESSOR = 4
#: Seconds in which a template forks a process. A first start takes longer: it makes the template.
_FORK_S = 0.05
#: Stages of a start that later ones do not have: the process and its imports come from the template.
_ONCE = ("process_s", "import_s")
#: Predictors for each processor that are started as soon as requests have waited for as long as a start takes.
_SOON = 2
#: Time of a run that counts as a long one, as a factor of the shortest run of the same predictors; and in seconds,
#: where none of their runs has ended.
_LONG_RUNS, _LONG_S = 4.0, 1.0
#: Seconds in which no further predictor is tried after one that could not be started.
_RETRY_S = 30.0
#: Deployments that are remembered.
_MOST = 4096
#: Most and least seconds between two looks at requests that wait.
_LOOK_S, _LEAST_S = 0.1, 0.01
#: Seconds that an idle predictor stays of those that a deployment has beyond its `instances`.
SURPLUS_KEEP_ALIVE_S = 15.0


@dataclass(slots=True)
class _Known:
    """Facts about a deployment: seconds of its quickest start, and when to try again after one that failed."""

    start_s: float
    barred_until_s: float = 0.0


class Growth:
    """Decides when a deployment is to have one more predictor. All times are on one clock.

    Args:
        processors: Runs that compute at once without waiting for each other.

    Attributes:
        soon: Predictors of a deployment that are started without knowing that its runs take long.
    """

    def __init__(self, processors: int) -> None:
        self.soon = _SOON * processors
        self._known: dict[DeploymentKey, _Known] = {}

    def started(self, key: DeploymentKey, stages: Mapping[str, float]) -> None:
        """Note that a predictor has loaded its model, with the seconds of each stage of its start."""
        taken_s = _FORK_S + sum(seconds for name, seconds in stages.items() if name not in _ONCE)
        known = self._known.pop(key, None)
        start_s = taken_s if known is None else min(known.start_s, taken_s)
        self._known[key] = _Known(start_s) if known is None else known
        self._known[key].start_s = start_s
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def failed(self, key: DeploymentKey, now_s: float) -> None:
        """Note that a further predictor could not be started, or found no memory."""
        known = self._known.get(key)
        if known is not None:
            known.barred_until_s = now_s + _RETRY_S

    def due_s(
        self, key: DeploymentKey, begins_s: Collection[float], queued_s: float | None, shortest_s: float = math.inf
    ) -> float | None:
        """Return when a further predictor is to start. None before the first one has loaded the model.

        Args:
            begins_s: When each run began that is going on; at least one.
            queued_s: When the request came that is next; None for a predictor ahead of the next request.
            shortest_s: Seconds of the shortest run of the predictors that are busy; infinite if none has ended.
        """
        known = self._known.get(key)
        if known is None:
            return None
        latest_s = max(begins_s)
        if queued_s is not None and len(begins_s) < self.soon:
            # A run that has taken as long as a start is likely to take as long again.
            due_s = min(queued_s, latest_s) + known.start_s
        else:
            long_s = _LONG_RUNS * shortest_s if shortest_s < math.inf else _LONG_S
            due_s = latest_s + max(known.start_s, long_s)
        return max(due_s, known.barred_until_s)


class Grower:
    """Has deployments grow while their requests wait. Used in the pool's event loop.

    Args:
        running: The pool's predictors.
        carry_out: Carries out steps of the schedule.

    Attributes:
        most: Predictors at once of a deployment that grows.
    """

    def __init__(
        self,
        slots: Schedule,
        running: Mapping[int, Running],
        carry_out: Callable[[Sequence[Step]], None],
        settings: Settings,
    ) -> None:
        self._slots, self._running, self._carry_out = slots, running, carry_out
        bytes_stated = settings.most_further_bytes
        self._most_bytes = allowed_bytes() // 4 if bytes_stated is None else bytes_stated
        self._processors = processors()
        self.most = settings.most_instances or _FOR_EACH_PROCESSOR * self._processors
        self.growth = Growth(self._processors)
        self._growing: set[DeploymentKey] = set()
        self._timers: dict[DeploymentKey, asyncio.TimerHandle] = {}
        self._background = Background("further predictors")
        self._closing = False

    def watch(self, deployment: Deployment) -> None:
        """Look from now on whether the requests of a deployment wait for too long, until none waits."""
        if deployment.key not in self._timers:
            self._look(deployment)

    def needs_idle(self, key: DeploymentKey) -> bool:
        """Return whether so many predictors of a deployment answer that one more stays for the next request."""
        return len(self._slots.busy(key)) >= self._processors and self._slots.counts(key)["idle"] <= 1

    def _look(self, deployment: Deployment) -> None:
        key = deployment.key
        self._timers.pop(key, None)
        job, busy = self._slots.first(key), self._slots.busy(key)
        if self._closing or (job is None and len(busy) < self._processors):
            return
        now_s, wait_s = time.perf_counter(), _LOOK_S
        due_s = None
        if busy:
            runs = [self._running[each] for each in busy]
            begins_s, shortest_s = [each.run_began_s for each in runs], min(each.shortest_s for each in runs)
            due_s = self.growth.due_s(key, begins_s, job.payload.queued_s if job else None, shortest_s)
        if due_s is not None and due_s <= now_s:
            if key not in self._growing:
                self._growing.add(key)
                self._background.start(self._grow(deployment))
        elif due_s is not None:
            wait_s = max(due_s - now_s, _LEAST_S)
        self._timers[key] = asyncio.get_running_loop().call_later(min(wait_s, _LOOK_S), self._look, deployment)

    async def _grow(self, deployment: Deployment) -> None:
        key = deployment.key
        try:
            siblings = [self._running[each].process.pid for each in self._slots.busy(key)]
            others = [running.process.pid for each in self._slots.further() if (running := self._running.get(each))]
            if (lack := await asyncio.to_thread(self._lack, siblings, others)) is not None:
                self.growth.failed(key, time.perf_counter())
                _log.info("%s: requests wait, and no further predictor is started: %s", deployment.subject, lack)
                return
            self._extend(key)
        finally:
            self._growing.discard(key)

    def _extend(self, key: DeploymentKey) -> None:
        """Start one predictor for each request that waits, up to `Growth.soon`; beyond, and ahead, one at a time."""
        counts = self._slots.counts(key)
        serving = counts["busy"] + counts["starting"]
        if counts["queued"] and serving < self.growth.soon:
            for _ in range(self.growth.soon - serving):
                self._carry_out(self._slots.extend(key))
        elif not counts["starting"]:
            self._carry_out(self._slots.extend(key, ahead=not counts["queued"]))

    def _lack(self, siblings: Sequence[int], others: Sequence[int]) -> str | None:
        """Return why there is no memory for one more predictor like these; None if there is. It blocks for a while."""
        needed = max((found.own_bytes for each in siblings if (found := footprint(each))), default=0)
        taken = sum(found.own_bytes for each in others if (found := footprint(each)))
        if taken + needed > self._most_bytes:
            return (
                f"it would take about {format_bytes(needed)}, others take {format_bytes(taken)}, and all may take "
                f"{format_bytes(self._most_bytes)} together (--further-memory)"
            )
        room = room_bytes()
        return None if needed <= room else f"it would take about {format_bytes(needed)} of {format_bytes(room)}"

    async def close(self) -> None:
        """Start none any more."""
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        self._background.cancel()
        await self._background.wait()
