"""Books of the scheduler: queues of requests, predictors, and the slots that they take."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims_predictors.pool.events import Job, JobQueue, Limits

if TYPE_CHECKING:
    from trims_predictors.deployment.key import DeploymentKey


class State(enum.Enum):
    """State of a predictor. The slot is free once the predictor has ended, not before."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    STOPPING = "stopping"


@dataclass(eq=False, slots=True)
class Slots:
    """Slots of the operator, or of a tenant.

    Attributes:
        most: Predictors at once, those that are starting or stopping included.
        taken: Predictors that there are.
        further: How many of them `extend` has started.
        idle: Idle ones; the one that has been so longest is the first.
        unwanted: Predictors that still load, for queues in which nothing waits any more.
        wanting: Queues that want one more.
    """

    most: int
    taken: int = 0
    further: int = 0
    stopping: int = 0
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    unwanted: OrderedDict[int, None] = field(default_factory=OrderedDict)
    wanting: OrderedDict[Queue, None] = field(default_factory=OrderedDict)


@dataclass(eq=False, slots=True)
class Queue:
    """Requests of a deployment, and its predictors by state."""

    key: DeploymentKey
    limits: Limits
    slots: Slots
    jobs: JobQueue = field(default_factory=JobQueue)
    starting: set[int] = field(default_factory=set)
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    busy: set[int] = field(default_factory=set)
    retired: bool = False

    @property
    def serving(self) -> int:
        """Return the number of predictors, apart from those that stop."""
        return len(self.starting) + len(self.idle) + len(self.busy)

    def first(self) -> Job:
        """Return the request that is answered first."""
        return self.jobs.first()


@dataclass(eq=False, slots=True)
class Predictor:
    """Predictor, and the requests that it runs.

    Attributes:
        further: Whether `extend` has started it.
        idles: Number of its idle time.
        retired: Whether it ends once it has finished.
    """

    queue: Queue
    further: bool = False
    state: State = State.STARTING
    jobs: tuple[Job, ...] = ()
    idles: int = 0
    retired: bool = False
