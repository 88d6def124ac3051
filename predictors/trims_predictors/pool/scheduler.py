"""Scheduler of requests and predictors: who answers which, and which predictors there are. No clock, no process.

Every event returns the steps that the pool carries out; each step's outcome comes back as an event. Requests wait in
the *queue* of their deployment. A queue has up to `instances` predictors, and further ones while `extend` is called.
The operator has *slots* for predictors of all queues together, and each tenant has its own, so that none waits for
another's. If no slot is free, the predictor that has been idle longest gives its slot up, or one that loads for
requests that are gone. If there is none, the next one that finishes does, provided that the other queue's request came
first. So no queue starves, whatever others bring. Further predictors take half of all slots at most: free ones, or, for
a request that waits, one of a predictor that idles.

Each event costs the same whatever waits; only a batch costs its own length.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from trims.core.errors import BusyError, InvariantError, PredictorError
from trims_predictors.pool.books import Predictor, Queue, Slots, State
from trims_predictors.pool.events import Fail, Run, Start, Stop, next_batch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trims.core.errors import TrimsError
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.pool.events import Job, Limits, Step


class Schedule:
    """The books of all queues.

    Args:
        most: Predictors at once of the operator, and of each tenant that `of_tenants` does not list.
        of_tenants: Predictors at once of a tenant, by its name.
    """

    def __init__(self, most: int, of_tenants: Mapping[str, int] | None = None) -> None:
        self._most, self._of_tenants = most, dict(of_tenants or {})
        self._slots: dict[str, Slots] = {}
        self._queues: dict[DeploymentKey, Queue] = {}
        self._predictors: dict[int, Predictor] = {}
        self._numbers, self._ids = itertools.count(), itertools.count(1)

    # -- events ----------------------------------------------------------------------------------------------------

    def submit(self, job: Job, limits: Limits) -> list[Step]:
        """Put a request into its queue. Return the next steps. Raises BusyError if the queue is full."""
        queue = self._queues.get(job.key)
        if queue is None:
            queue = self._queues[job.key] = Queue(job.key, limits, self._slots_of(job.key))
        queue.limits = limits
        if len(queue.jobs) >= limits.queue:
            raise BusyError(
                f"{len(queue.jobs)} requests for {queue.key.model!r} wait already, the most that may (--queue); "
                "send it again later"
            )
        job.number = next(self._numbers)
        steps = self._end_outdated(queue) if queue.retired else []
        queue.jobs.add(job)
        return steps + self._serve(queue)

    def _end_outdated(self, queue: Queue) -> list[Step]:
        """End predictors of a retired queue that wait for a batch to fill: the request that comes needs new ones."""
        queue.retired = False
        outdated = [each for each in queue.idle if self._predictors[each].retired]
        return [step for each in outdated for step in self._stop(each)]

    def expect(self, key: DeploymentKey, limits: Limits) -> list[Step]:
        """Start a predictor for a request that is about to come, if its queue has none and no other wants the slot.

        If the request does not come, the predictor idles, or gives its slot up while it still loads.
        """
        queue = self._queues.get(key) or Queue(key, limits, self._slots_of(key))
        slots = queue.slots
        if queue.serving or queue.jobs or slots.wanting or slots.taken >= slots.most:
            return []
        self._queues[key] = queue
        steps: list[Step] = [self._start(queue)]
        self._note_unwanted(queue)
        return steps

    def extend(self, key: DeploymentKey, *, ahead: bool = False) -> list[Step]:
        """Start one predictor beyond `instances`, up to `most`, where a free slot is not wanted by others.

        For a request that waits, an idle predictor of another queue gives its slot up: call it again once it has ended.

        Args:
            ahead: Whether it is for the next request, where all predictors are busy; else for one that waits, and for
                which none starts already.
        """
        queue = self._queues.get(key)
        if queue is None or queue.retired or queue.idle or len(queue.starting) >= len(queue.jobs) + ahead:
            return []
        slots = queue.slots
        if slots.wanting or slots.further >= slots.most // 2 or queue.serving >= queue.limits.most:
            return []
        if slots.taken >= slots.most:
            return self._free_for(queue)
        steps: list[Step] = [self._start(queue, further=True)]
        self._note_unwanted(queue)
        return steps

    def _free_for(self, queue: Queue) -> list[Step]:
        """End the predictor that has been idle longest, where more requests wait than predictors start or stop."""
        slots = queue.slots
        if not slots.idle or len(queue.jobs) <= len(queue.starting) + slots.stopping:
            return []
        victim = next(iter(slots.idle))
        return self._stop(victim) + self._settle(self._predictors[victim].queue)

    def mark_ready(self, job: Job) -> list[Step]:
        """Let a job wait no longer for others to run with. Return the next steps."""
        job.batch_ready = True
        queue = self._queues.get(job.key)
        return self._serve(queue) if queue is not None and job in queue.jobs else []

    def cancel(self, job: Job) -> list[Step] | None:
        """Take out a job that is given up, or whose time is over. Return the next steps, None if it does not wait."""
        queue = self._queues.get(job.key)
        if queue is None or job not in queue.jobs:
            return None
        queue.jobs.remove(job)
        return self._settle(queue)

    def ready(self, predictor: int) -> list[Step]:
        """Note that a predictor has loaded its model. Return the next steps."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.STARTING:
            return []
        self._not_starting(predictor, found.queue)
        return self._released(predictor, found)

    def done(self, predictor: int) -> list[Step]:
        """Note that a predictor has answered its run and each client has its answer. Return the next steps."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.BUSY:
            return []
        found.jobs = ()
        found.queue.busy.discard(predictor)
        return self._released(predictor, found)

    def failed(self, predictor: int, error: TrimsError) -> list[Step]:
        """Note that a predictor could not load its model; its process still has to end. Return the next steps."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.STARTING:
            return []
        queue = found.queue
        steps = self._stop(predictor)
        return steps + self._disappoint(queue, error)

    def ended(self, predictor: int, why: str) -> list[Step]:
        """Free the slot of a predictor whose process is gone, wanted or not. Return the next steps."""
        found = self._predictors.pop(predictor, None)
        if found is None:
            return []
        queue = found.queue
        queue.slots.taken -= 1
        queue.slots.further -= found.further
        steps: list[Step] = []
        error = PredictorError(f"the predictor of {queue.key.model!r} ended: {why}")
        if found.state is State.STOPPING:
            queue.slots.stopping -= 1
        elif found.state is State.STARTING:
            self._not_starting(predictor, queue)
            steps += self._disappoint(queue, error)
        elif found.state is State.BUSY:
            queue.busy.discard(predictor)
            steps += [Fail(job, error) for job in found.jobs]
        else:
            self._take_idle(predictor, queue)
        return steps + self._settle(queue)

    def lost(self, predictor: int) -> list[Step]:
        """Give an idle predictor whose process is ending no more requests. Its end is reported later."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.IDLE:
            return []
        self._stop(predictor)
        return self._settle(found.queue)

    def expire(self, predictor: int, idles: int) -> list[Step]:
        """End a predictor whose keep-alive is over, if it is still in the idle time of this number (see `idles`)."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.IDLE or found.idles != idles:
            return []
        return self._stop(predictor) + self._settle(found.queue)

    def retire(self, key: DeploymentKey) -> list[Step]:
        """Let a queue's predictors end: idle ones now, others once they have answered what runs and what waits.

        Once another request comes, they answer none that waits any more: it needs new ones.
        """
        queue = self._queues.get(key)
        if queue is None:
            return []
        queue.retired = True
        for predictor in queue.busy:
            self._predictors[predictor].retired = True
        return [step for predictor in list(queue.idle) for step in self._stop(predictor)] + self._settle(queue)

    def give_way(self, key: DeploymentKey) -> list[Step]:
        """End the same tenant's predictor that has been idle longest, for one that finds no room for its model.

        Nothing if none is idle.
        """
        victim = next(iter(self._slots_of(key).idle), None)
        if victim is None:
            return []
        return self._stop(victim) + self._settle(self._predictors[victim].queue)

    # -- questions -------------------------------------------------------------------------------------------------

    def is_starting(self, predictor: int) -> bool:
        """Return whether a predictor is loading its model: it has neither loaded it nor been asked to end."""
        found = self._predictors.get(predictor)
        return found is not None and found.state is State.STARTING

    def idles(self, predictor: int) -> int | None:
        """Return the number of a predictor's idle time; None if it is not idle."""
        found = self._predictors.get(predictor)
        return found.idles if found is not None and found.state is State.IDLE else None

    def further(self) -> list[int]:
        """Return the predictors that `extend` has started."""
        return [number for number, each in self._predictors.items() if each.further]

    def surplus(self, key: DeploymentKey) -> int:
        """Return how many predictors a queue has beyond its `instances`."""
        queue = self._queues.get(key)
        return 0 if queue is None else max(0, queue.serving - queue.limits.instances)

    def first(self, key: DeploymentKey) -> Job | None:
        """Return the request of a queue that is answered next; None if none waits."""
        queue = self._queues.get(key)
        return queue.first() if queue is not None and queue.jobs else None

    def busy(self, key: DeploymentKey) -> Collection[int]:
        """Return the predictors of a queue that answer."""
        queue = self._queues.get(key)
        return () if queue is None else queue.busy

    def counts(self, key: DeploymentKey) -> dict[str, int]:
        """Return how many of a queue's predictors are in each state, and how many requests wait (`queued`)."""
        queue = self._queues.get(key)
        if queue is None:
            return {"queued": 0, "starting": 0, "idle": 0, "busy": 0}
        return {
            "queued": len(queue.jobs),
            "starting": len(queue.starting),
            "idle": len(queue.idle),
            "busy": len(queue.busy),
        }

    def _slots_of(self, key: DeploymentKey) -> Slots:
        tenant = key.tenant
        slots = self._slots.get(tenant)
        if slots is None:
            most = self._of_tenants.get(tenant, self._most) if tenant else self._most
            slots = self._slots[tenant] = Slots(most)
        return slots

    # -- decisions -------------------------------------------------------------------------------------------------

    def _serve(self, queue: Queue) -> list[Step]:
        """Give the queue's requests to its idle predictors, and ask for more predictors if some are left."""
        steps: list[Step] = []
        while queue.idle and queue.jobs:
            jobs = next_batch(queue.jobs, queue.limits.batch)
            if not jobs:
                break
            predictor = next(reversed(queue.idle))  # the one that ran last: its caches are warm
            steps.append(self._run(predictor, queue, jobs))
        return steps + self._grow(queue)

    def _note_unwanted(self, queue: Queue) -> None:
        for predictor in queue.starting:
            if queue.jobs:
                queue.slots.unwanted.pop(predictor, None)
            else:
                queue.slots.unwanted.setdefault(predictor)

    def _run(self, predictor: int, queue: Queue, jobs: tuple[Job, ...]) -> Run:
        self._take_idle(predictor, queue)
        for job in jobs:
            queue.jobs.remove(job)
        found = self._predictors[predictor]
        found.state, found.jobs = State.BUSY, jobs
        queue.busy.add(predictor)
        return Run(predictor, jobs)

    def _grow(self, queue: Queue) -> list[Step]:
        """Have the queue wait for slots if it needs more predictors, and hand out what is free."""
        if self._wants_more(queue):
            queue.slots.wanting.setdefault(queue)
        else:
            queue.slots.wanting.pop(queue, None)
        self._note_unwanted(queue)
        return self._fill(queue.slots)

    @staticmethod
    def _wants_more(queue: Queue) -> bool:
        # An idle predictor beside a queue waits for a batch to fill.
        return len(queue.jobs) > len(queue.starting) + len(queue.idle) and queue.serving < queue.limits.instances

    def _start(self, queue: Queue, *, further: bool = False) -> Start:
        predictor = next(self._ids)
        self._predictors[predictor] = Predictor(queue, further)
        queue.starting.add(predictor)
        queue.slots.taken += 1
        queue.slots.further += further
        return Start(predictor, queue.key)

    def _stop(self, predictor: int) -> list[Step]:
        found = self._predictors[predictor]
        if found.state is State.IDLE:
            self._take_idle(predictor, found.queue)
        self._not_starting(predictor, found.queue)
        found.queue.busy.discard(predictor)
        found.state = State.STOPPING
        found.queue.slots.stopping += 1
        return [Stop(predictor)]

    def _released(self, predictor: int, found: Predictor) -> list[Step]:
        """A predictor has nothing to do: give it the next requests, or its slot to a queue that was there before."""
        queue = found.queue
        if queue.retired and not queue.jobs:
            over = [predictor, *queue.idle]  # some may have waited for a batch to fill
            return [step for each in over for step in self._stop(each)] + self._settle(queue)
        if (found.retired and not queue.retired) or self._must_yield(queue):
            return self._stop(predictor) + self._settle(queue)
        found.state = State.IDLE
        found.idles += 1
        queue.idle[predictor] = None
        queue.slots.idle[predictor] = None
        return self._serve(queue)

    @staticmethod
    def _must_yield(queue: Queue) -> bool:
        if len(queue.slots.wanting) <= queue.slots.stopping:
            return False
        other = next(iter(queue.slots.wanting))
        return other is not queue and (not queue.jobs or other.first().number < queue.first().number)

    @staticmethod
    def _not_starting(predictor: int, queue: Queue) -> None:
        queue.starting.discard(predictor)
        queue.slots.unwanted.pop(predictor, None)

    @staticmethod
    def _take_idle(predictor: int, queue: Queue) -> None:
        del queue.idle[predictor]
        del queue.slots.idle[predictor]

    def _disappoint(self, queue: Queue, error: TrimsError) -> list[Step]:
        """Fail what waits in a queue that has no other predictor: each of its requests would meet the same error."""
        if queue.serving:
            return []
        steps: list[Step] = [Fail(job, error) for job in queue.jobs]
        queue.jobs.clear()
        return steps + self._settle(queue)

    def _fill(self, slots: Slots) -> list[Step]:
        """Start what queues want, the one first that has wanted longest; have idle predictors make room for others."""
        steps: list[Step] = []
        while slots.wanting and slots.taken < slots.most:
            queue, _ = slots.wanting.popitem(last=False)
            steps.append(self._start(queue))
            if self._wants_more(queue):
                slots.wanting[queue] = None
        while slots.stopping < len(slots.wanting) and (slots.idle or slots.unwanted):
            victim = next(iter(slots.idle or slots.unwanted))
            queue = self._predictors[victim].queue
            steps += self._stop(victim)
            if self._wants_more(queue):  # its requests were waiting for a batch to fill
                slots.wanting.setdefault(queue)
        return steps

    def _settle(self, queue: Queue) -> list[Step]:
        """Return the steps after something left the queue, and forget a queue without jobs and predictors."""
        steps = self._grow(queue)
        if not (queue.jobs or queue.serving):
            queue.slots.wanting.pop(queue, None)
            if self._queues.get(queue.key) is queue:  # there may be another one since, with the same name
                del self._queues[queue.key]
        return steps

    # -- checking --------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise InvariantError naming the first rule that does not hold."""
        for slots in self._slots.values():
            self._validate_slots(slots)
        for queue in self._queues.values():
            self._validate_queue(queue)

    def _validate_slots(self, slots: Slots) -> None:
        found = {number: each for number, each in self._predictors.items() if each.queue.slots is slots}
        of_state = {state: {number for number, each in found.items() if each.state is state} for state in State}
        unwanted = {number for number in of_state[State.STARTING] if not found[number].queue.jobs}
        _require(len(found) == slots.taken <= slots.most, "there are more predictors than slots")
        further = sum(each.further for each in found.values())
        _require(further == slots.further <= max(1, slots.most // 2), "further predictors are counted wrongly")
        _require(len(of_state[State.STOPPING]) == slots.stopping, "predictors that stop are counted wrongly")
        _require(of_state[State.IDLE] == set(slots.idle), "idle predictors are listed wrongly")
        _require(unwanted == set(slots.unwanted), "predictors that load for nothing are listed wrongly")
        _require(all(self._queues.get(each.key) is each for each in slots.wanting), "a forgotten queue wants a slot")

    def _validate_queue(self, queue: Queue) -> None:
        for state, listed in ((State.STARTING, queue.starting), (State.IDLE, queue.idle), (State.BUSY, queue.busy)):
            for predictor in listed:
                found = self._predictors.get(predictor)
                fits = found is not None and found.queue is queue and found.state is state
                _require(fits, f"predictor {predictor} is not {state.value} for {queue.key}")
        _require(
            queue.serving <= max(queue.limits.instances, queue.limits.most, 1) or queue.retired,
            f"{queue.key} has too many predictors",
        )
        _require(len(queue.jobs) <= queue.limits.queue or queue.retired, f"too many requests wait for {queue.key}")
        if queue.jobs and not queue.serving:
            _require(queue in queue.slots.wanting, f"requests for {queue.key} wait for nothing")
        if queue in queue.slots.wanting:
            _require(
                queue.slots.taken > len(queue.slots.idle), f"{queue.key} wants a slot, and idle predictors keep theirs"
            )


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)
