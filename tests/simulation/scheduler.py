"""A virtual clock, and pools of workers whose work runs in one thread, in whatever order the choices say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .choices import Choices


@dataclass(slots=True, eq=False)
class Task:
    """Something that runs later."""

    pool: str
    work: Callable[[], object]
    not_before_s: float


class Scheduler:
    """Scheduler of the work that would run in threads, now or later.

    Args:
        choices: Decide what runs next and how long it is delayed.

    Attributes:
        now_s: The virtual clock.
        tasks: What has not run yet, in order of submission.
        died: What tasks raised: in threads it would have been logged and lost.
        ran: Tasks that ran: completions of measurements, fills, frees, hashes, looks, writes of the catalog.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.now_s = 1000.0
        self.tasks: list[Task] = []
        self.died: list[Exception] = []
        self.ran = 0

    def clock(self) -> float:
        """Monotonic seconds."""
        return self.now_s

    def later(self, pool: str, work: Callable[[], object]) -> None:
        """Run it some time: at once, soon, or after seconds."""
        delay_s = (0.0, 0.0, 0.01, 3.0)[self._choices.below(4)]
        self.tasks.append(Task(pool, work, self.now_s + delay_s))

    def ready(self) -> list[Task]:
        """Return the tasks that may run now."""
        return [task for task in self.tasks if task.not_before_s <= self.now_s]

    def run_one(self, *, any_order: bool = True) -> bool:
        """Run one task that is ready; False if none is."""
        ready = self.ready()
        if not ready:
            return False
        task = self._choices.one_of(ready) if any_order else ready[0]
        self.tasks.remove(task)
        self.ran += 1
        try:
            task.work()
        except Exception as error:
            self.died.append(error)
        return True

    def next_at_s(self) -> float | None:
        """Return the moment at which the next delayed task is ready."""
        return min((task.not_before_s for task in self.tasks), default=None)

    def pool(self, name: str, threads: int, *, niceness: int = 0) -> SimPool:
        """See `trims.store.work.Pools`."""
        del threads, niceness
        return SimPool(self, name)


class SimPool:
    """See `trims.store.work.Pool`."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self._name = name
        self._stopped = False

    def submit(self, work: Callable[[], object], tenant: str | None = None) -> bool:
        """See `Pool.submit`. Work is done in any order here, so turns mean nothing."""
        del tenant
        if self._stopped:
            return False

        def run() -> None:
            self._mine.discard(id(task))
            work()

        self._scheduler.later(self._name, run)
        task = self._scheduler.tasks[-1]
        self._mine.add(id(task))
        return True

    @property
    def _mine(self) -> set[int]:
        return self.__dict__.setdefault("_tasks", set())

    def stop(self, *, drop: bool = False, timeout_s: float | None = None) -> bool:
        """Run what is there, in order, as threads would before they end."""
        del timeout_s
        self._stopped = True
        for task in [task for task in self._scheduler.tasks if id(task) in self._mine]:
            self._scheduler.tasks.remove(task)
            if not drop:
                task.work()
        return True
