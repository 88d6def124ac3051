"""Questions to a schedule and its decisions: jobs, the limits of their deployments, and the steps to carry out."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator

    from trims.core.errors import TrimsError
    from trims_predictors.deployment.key import DeploymentKey


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one deployment.

    Attributes:
        instances: Predictors at once that are started as soon as requests wait.
        queue: Requests that may wait.
        batch: Rows of one run; 0: each request runs alone.
        most: Predictors at once with those that `extend` starts.
    """

    instances: int = 1
    queue: int = 128
    batch: int = 0
    most: int = 1


@dataclass(eq=False, slots=True)
class Job:
    """One request. `group` says which others it may run together with, `rows` how much of a batch it takes.

    Jobs of a lower `level` go before those of higher ones.

    A job that is not `batch_ready` waits for others to run with; `mark_ready` ends that.
    """

    key: DeploymentKey
    rows: int = 1
    group: Hashable = None
    batch_ready: bool = True
    payload: Any = None
    number: int = -1
    level: int = 0


class JobQueue:
    """Jobs that wait: those of the first level first, and those of one level in the order in which they came."""

    def __init__(self) -> None:
        #: Only levels in which a job waits; there are few (`MOST_LEVELS` of a manifest).
        self._levels: dict[int, OrderedDict[Job, None]] = {}
        self._count = 0

    def add(self, job: Job) -> None:
        """Put a job behind the others of its level."""
        self._levels.setdefault(job.level, OrderedDict())[job] = None
        self._count += 1

    def remove(self, job: Job) -> None:
        """Take a job out. Raises KeyError if it is not there."""
        level = self._levels[job.level]
        del level[job]
        self._count -= 1
        if not level:
            del self._levels[job.level]

    def clear(self) -> None:
        """Take all out."""
        self._levels.clear()
        self._count = 0

    def first(self) -> Job:
        """The job that is next."""
        return next(iter(self))

    def __iter__(self) -> Iterator[Job]:
        return itertools.chain.from_iterable(self._levels[level] for level in sorted(self._levels))

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and job in self._levels.get(job.level, ())

    def __len__(self) -> int:
        return self._count


@dataclass(frozen=True, slots=True)
class Start:
    """Start a predictor of a deployment."""

    predictor: int
    key: DeploymentKey


@dataclass(frozen=True, slots=True)
class Run:
    """Have the predictor answer the jobs in one run."""

    predictor: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End the predictor."""

    predictor: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Report an error to the job's client."""

    job: Job
    error: TrimsError


Step = Start | Run | Stop | Fail


def next_batch(queue: Collection[Job], most_rows: int) -> tuple[Job, ...]:
    """The jobs of the next run; none while they should wait for others.

    Args:
        queue: What waits, oldest first; at least one.
        most_rows: Rows of one run; 0: each job runs alone.
    """
    first = next(iter(queue))
    if not most_rows:
        return (first,)
    taken, rows = [first], first.rows
    for job in itertools.islice(queue, 1, None):
        if job.group != first.group or rows + job.rows > most_rows:
            return tuple(taken)  # full: there is nothing to wait for
        taken.append(job)
        rows += job.rows
    return tuple(taken) if rows >= most_rows or any(job.batch_ready for job in taken) else ()
