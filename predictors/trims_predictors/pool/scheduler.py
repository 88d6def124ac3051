"""Which predictor answers which request, and which predictors there are: pure decisions, no clock, no process.

Every event returns the steps that the pool carries out; each step's outcome comes back as an event. A model's requests
wait in its *line*. A line has up to `instances` predictors, all lines together have `most` slots. If no slot is free,
the predictor that has been idle longest gives its slot up, or one that loads for requests that are gone. If there is
none, the next one that finishes does, provided that the other line's request came first. So no line starves, whatever
the others bring.

Each event costs the same whatever waits; only a batch costs its own length.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import BusyError, InvariantError, PredictorError
from trims_predictors.pool.events import Fail, Job, JobQueue, Limits, Run, Start, Stop, model_of, next_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.core.errors import TrimsError
    from trims_predictors.pool.events import Step


class State(enum.Enum):
    """Of a predictor. Its slot is free once it has ended, not before."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"


@dataclass(eq=False, slots=True)
class _Line:
    name: str
    limits: Limits
    queue: JobQueue = field(default_factory=JobQueue)
    starting: set[int] = field(default_factory=set)
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    busy: set[int] = field(default_factory=set)
    retired: bool = False

    @property
    def serving(self) -> int:
        return len(self.starting) + len(self.idle) + len(self.busy)

    def first(self) -> Job:
        return self.queue.first()


@dataclass(eq=False, slots=True)
class _Predictor:
    line: _Line
    state: State = State.STARTING
    jobs: tuple[Job, ...] = ()
    idles: int = 0
    retired: bool = False


class Schedule:
    """The books of all lines.

    Args:
        most: Predictors at once, those that are starting or stopping included.
        numbers: Gives predictors their numbers; by default from 1 up.
    """

    def __init__(self, most: int, numbers: Iterator[int] | None = None) -> None:
        self._most = most
        self._lines: dict[str, _Line] = {}
        self._predictors: dict[int, _Predictor] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        #: Predictors that still load, for lines in which nothing waits any more.
        self._unwanted: OrderedDict[int, None] = OrderedDict()
        self._stopping = 0
        self._wanting: OrderedDict[_Line, None] = OrderedDict()
        self._numbers = itertools.count()
        self._ids = itertools.count(1) if numbers is None else numbers

    # -- events ----------------------------------------------------------------------------------------------------

    def submit(self, job: Job, limits: Limits) -> list[Step]:
        """A request came. Raises BusyError if its line is full."""
        line = self._lines.get(job.line)
        if line is None:
            line = self._lines[job.line] = _Line(job.line, limits)
        line.limits = limits
        line.retired = False
        if len(line.queue) >= limits.queue:
            raise BusyError(
                f"{len(line.queue)} requests for {model_of(line.name)!r} wait already, the most that may (--queue); "
                "send it again later"
            )
        job.number = next(self._numbers)
        line.queue.add(job)
        return self._serve(line)

    def expect(self, line_name: str, limits: Limits) -> list[Step]:
        """A request is about to come: start a predictor for its line if that has none and no other line wants the slot.

        If the request does not come, the predictor idles, or gives its slot up while it still loads.
        """
        line = self._lines.get(line_name) or _Line(line_name, limits)
        if line.serving or line.queue or self._wanting or len(self._predictors) >= self._most:
            return []
        self._lines[line_name] = line
        steps: list[Step] = [self._start(line)]
        self._note_unwanted(line)
        return steps

    def ripen(self, job: Job) -> list[Step]:
        """The job has waited long enough for others."""
        job.batch_ready = True
        line = self._lines.get(job.line)
        return self._serve(line) if line is not None and job in line.queue else []

    def cancel(self, job: Job) -> list[Step] | None:
        """The client gave up, or the job's time to wait is over. None: it is not waiting (any more)."""
        line = self._lines.get(job.line)
        if line is None or job not in line.queue:
            return None
        line.queue.remove(job)
        return self._settle(line)

    def ready(self, predictor: int) -> list[Step]:
        """A predictor has loaded its model."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.STARTING:
            return []
        self._not_starting(predictor, found.line)
        return self._released(predictor, found)

    def done(self, predictor: int) -> list[Step]:
        """A predictor has answered its run; each of the jobs has been told."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.BUSY:
            return []
        found.jobs = ()
        found.line.busy.discard(predictor)
        return self._released(predictor, found)

    def failed(self, predictor: int, error: TrimsError) -> list[Step]:
        """A predictor could not load its model. Its process still has to end."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.STARTING:
            return []
        line = found.line
        steps = self._stop(predictor)
        return steps + self._disappoint(line, error)

    def ended(self, predictor: int, why: str) -> list[Step]:
        """A predictor's process is gone, wanted or not: its slot is free."""
        found = self._predictors.pop(predictor, None)
        if found is None:
            return []
        line = found.line
        steps: list[Step] = []
        error = PredictorError(f"the predictor of {model_of(line.name)!r} ended: {why}")
        if found.state is State.STOPPING:
            self._stopping -= 1
        elif found.state is State.STARTING:
            self._not_starting(predictor, line)
            steps += self._disappoint(line, error)
        elif found.state is State.BUSY:
            line.busy.discard(predictor)
            steps += [Fail(job, error) for job in found.jobs]
        else:
            self._take_idle(predictor, line)
        return steps + self._settle(line)

    def lost(self, predictor: int) -> list[Step]:
        """An idle predictor's process is going, so it gets no more requests. Its end is told later."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.IDLE:
            return []
        self._stop(predictor)
        return self._settle(found.line)

    def expire(self, predictor: int, idles: int) -> list[Step]:
        """A predictor's keep-alive is over, if it is still in the idle time of this number (see `idles`)."""
        found = self._predictors.get(predictor)
        if found is None or found.state is not State.IDLE or found.idles != idles:
            return []
        return self._stop(predictor) + self._settle(found.line)

    def retire(self, line_name: str) -> list[Step]:
        """Let a line's predictors end: idle ones now, others when they finish. Requests that wait still run."""
        line = self._lines.get(line_name)
        if line is None:
            return []
        line.retired = not line.queue
        for predictor in line.busy:  # a request that comes before they finish needs new ones all the same
            self._predictors[predictor].retired = True
        return [step for predictor in list(line.idle) for step in self._stop(predictor)] + self._settle(line)

    def give_way(self) -> list[Step]:
        """A predictor finds no room for its model: the one that has been idle longest ends, which is the first step.

        Nothing if none is idle.
        """
        victim = next(iter(self._idle), None)
        if victim is None:
            return []
        return self._stop(victim) + self._settle(self._predictors[victim].line)

    # -- questions -------------------------------------------------------------------------------------------------

    def is_starting(self, predictor: int) -> bool:
        """Return whether a predictor is to load its model: it neither has, nor was told to end."""
        found = self._predictors.get(predictor)
        return found is not None and found.state is State.STARTING

    def idles(self, predictor: int) -> int | None:
        """Which idle time a predictor is in; None if it is not idle."""
        found = self._predictors.get(predictor)
        return found.idles if found is not None and found.state is State.IDLE else None

    def line(self, name: str) -> dict[str, int]:
        """How many of a line's predictors are in each state, and how many requests wait (`queued`)."""
        line = self._lines.get(name)
        if line is None:
            return {"queued": 0, "starting": 0, "idle": 0, "busy": 0}
        return {
            "queued": len(line.queue),
            "starting": len(line.starting),
            "idle": len(line.idle),
            "busy": len(line.busy),
        }

    # -- decisions -------------------------------------------------------------------------------------------------

    def _serve(self, line: _Line) -> list[Step]:
        """Give the line's requests to its idle predictors, and ask for more predictors if some are left."""
        steps: list[Step] = []
        while line.idle and line.queue:
            jobs = next_batch(line.queue, line.limits.batch)
            if not jobs:
                break
            predictor = next(reversed(line.idle))  # the one that ran last: its caches are warm
            steps.append(self._run(predictor, line, jobs))
        return steps + self._grow(line)

    def _note_unwanted(self, line: _Line) -> None:
        for predictor in line.starting:
            if line.queue:
                self._unwanted.pop(predictor, None)
            else:
                self._unwanted.setdefault(predictor)

    def _run(self, predictor: int, line: _Line, jobs: tuple[Job, ...]) -> Run:
        self._take_idle(predictor, line)
        for job in jobs:
            line.queue.remove(job)
        found = self._predictors[predictor]
        found.state, found.jobs = State.BUSY, jobs
        line.busy.add(predictor)
        return Run(predictor, jobs)

    def _grow(self, line: _Line) -> list[Step]:
        """Have the line wait for slots if it needs more predictors, and hand out what is free."""
        if self._wants_more(line):
            self._wanting.setdefault(line)
        else:
            self._wanting.pop(line, None)
        self._note_unwanted(line)
        return self._fill_slots()

    @staticmethod
    def _wants_more(line: _Line) -> bool:
        # An idle predictor beside a queue waits for a batch to fill.
        return len(line.queue) > len(line.starting) + len(line.idle) and line.serving < line.limits.instances

    def _start(self, line: _Line) -> Start:
        predictor = next(self._ids)
        self._predictors[predictor] = _Predictor(line)
        line.starting.add(predictor)
        return Start(predictor, line.name)

    def _stop(self, predictor: int) -> list[Step]:
        found = self._predictors[predictor]
        if found.state is State.IDLE:
            self._take_idle(predictor, found.line)
        self._not_starting(predictor, found.line)
        found.line.busy.discard(predictor)
        found.state = State.STOPPING
        self._stopping += 1
        return [Stop(predictor)]

    def _released(self, predictor: int, found: _Predictor) -> list[Step]:
        """A predictor has nothing to do: give it the next requests, or its slot to a line that was there before."""
        line = found.line
        if line.retired or found.retired or self._must_yield(line):
            return self._stop(predictor) + self._settle(line)
        found.state = State.IDLE
        found.idles += 1
        line.idle[predictor] = None
        self._idle[predictor] = None
        return self._serve(line)

    def _must_yield(self, line: _Line) -> bool:
        if len(self._wanting) <= self._stopping:
            return False
        other = next(iter(self._wanting))
        return other is not line and (not line.queue or other.first().number < line.first().number)

    def _not_starting(self, predictor: int, line: _Line) -> None:
        line.starting.discard(predictor)
        self._unwanted.pop(predictor, None)

    def _take_idle(self, predictor: int, line: _Line) -> None:
        del line.idle[predictor]
        del self._idle[predictor]

    def _disappoint(self, line: _Line, error: TrimsError) -> list[Step]:
        """Fail what waits in a line that has no other predictor: each of its requests would meet the same error."""
        if line.serving:
            return []
        steps: list[Step] = [Fail(job, error) for job in line.queue]
        line.queue.clear()
        return steps + self._settle(line)

    def _fill_slots(self) -> list[Step]:
        """Start what lines want, the one first that has wanted longest; have idle predictors make room for the rest."""
        steps: list[Step] = []
        while self._wanting and len(self._predictors) < self._most:
            line, _ = self._wanting.popitem(last=False)
            steps.append(self._start(line))
            if self._wants_more(line):
                self._wanting[line] = None
        while self._stopping < len(self._wanting) and (self._idle or self._unwanted):
            victim = next(iter(self._idle or self._unwanted))
            line = self._predictors[victim].line
            steps += self._stop(victim)
            if self._wants_more(line):  # its requests were waiting for a batch to fill
                self._wanting.setdefault(line)
        return steps

    def _settle(self, line: _Line) -> list[Step]:
        """After something left the line: it may want less, or nothing at all."""
        steps = self._grow(line)
        if not (line.queue or line.serving):
            self._wanting.pop(line, None)
            if self._lines.get(line.name) is line:  # there may be another one since, with the same name
                del self._lines[line.name]
        return steps

    # -- checking --------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise InvariantError naming the first rule that does not hold."""
        stopping = sum(each.state is State.STOPPING for each in self._predictors.values())
        _require(len(self._predictors) <= self._most, "there are more predictors than slots")
        _require(stopping == self._stopping, "predictors that stop are counted wrongly")
        idle = {number for number, each in self._predictors.items() if each.state is State.IDLE}
        _require(idle == set(self._idle), "idle predictors are listed wrongly")
        starting = {number: each.line for number, each in self._predictors.items() if each.state is State.STARTING}
        unwanted = {number for number, line in starting.items() if not line.queue}
        _require(unwanted == set(self._unwanted), "predictors that load for nothing are listed wrongly")
        for line in self._lines.values():
            self._validate_line(line)
        _require(all(self._lines.get(line.name) is line for line in self._wanting), "a forgotten line wants a slot")

    def _validate_line(self, line: _Line) -> None:
        for state, listed in ((State.STARTING, line.starting), (State.IDLE, line.idle), (State.BUSY, line.busy)):
            for predictor in listed:
                found = self._predictors.get(predictor)
                fits = found is not None and found.line is line and found.state is state
                _require(fits, f"predictor {predictor} is not {state.value} for {line.name}")
        _require(line.serving <= max(line.limits.instances, 1) or line.retired, f"{line.name} has too many predictors")
        _require(len(line.queue) <= line.limits.queue or line.retired, f"too many requests wait for {line.name}")
        if line.queue and not line.serving:
            _require(line in self._wanting, f"requests for {line.name} wait for nothing")
        if line in self._wanting:
            progress = self._stopping or any(each.state is not State.IDLE for each in self._predictors.values())
            _require(bool(progress), f"{line.name} wants a slot, and idle predictors keep theirs")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)
