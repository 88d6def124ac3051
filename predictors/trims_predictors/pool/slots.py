"""Slots of predictors: the operator has some, and each tenant its own, so that none waits for another's to come free.

Each is a `Schedule` of its own, whose queues and predictors never meet those of another. Which one an event belongs to
follows from the tenant of its deployment's key, or from its predictor's number, which all draw from one counter.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from trims_predictors.pool.events import Start, Step
from trims_predictors.pool.scheduler import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.core.errors import TrimsError
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.pool.events import Job, Limits


class Slots:
    """The schedules of all.

    Args:
        most: Predictors at once of the operator, and of each tenant that `of_tenants` does not list.
        of_tenants: Predictors at once of a tenant, by its name.
    """

    def __init__(self, most: int, of_tenants: Mapping[str, int] | None = None) -> None:
        self._most = most
        self._of_tenants = dict(of_tenants or {})
        self._numbers = itertools.count(1)
        self._schedules: dict[str, Schedule] = {}
        self._by_predictor: dict[int, Schedule] = {}

    # -- events: see those of `Schedule` ---------------------------------------------------------------------------

    def submit(self, job: Job, limits: Limits) -> list[Step]:
        """Put a request into its queue. Return the next steps. Raises BusyError if the queue is full."""
        schedule = self._of(job.key)
        return self._noted(schedule, schedule.submit(job, limits))

    def expect(self, key: DeploymentKey, limits: Limits) -> list[Step]:
        """Start a predictor for a request that is about to come, if there is a slot. Return the next steps."""
        schedule = self._of(key)
        return self._noted(schedule, schedule.expect(key, limits))

    def ripen(self, job: Job) -> list[Step]:
        """Let a job wait no longer for others to run with. Return the next steps."""
        schedule = self._of(job.key)
        return self._noted(schedule, schedule.ripen(job))

    def cancel(self, job: Job) -> list[Step] | None:
        """Take out a job whose client gave up. Return the next steps, None if the job does not wait."""
        schedule = self._of(job.key)
        steps = schedule.cancel(job)
        return None if steps is None else self._noted(schedule, steps)

    def ready(self, predictor: int) -> list[Step]:
        """Note that a predictor has loaded its model. Return the next steps."""
        schedule = self._by_predictor.get(predictor)
        return [] if schedule is None else self._noted(schedule, schedule.ready(predictor))

    def done(self, predictor: int) -> list[Step]:
        """Note that a predictor has answered its run. Return the next steps."""
        schedule = self._by_predictor.get(predictor)
        return [] if schedule is None else self._noted(schedule, schedule.done(predictor))

    def failed(self, predictor: int, error: TrimsError) -> list[Step]:
        """Note that a predictor could not load its model. Return the next steps."""
        schedule = self._by_predictor.get(predictor)
        return [] if schedule is None else self._noted(schedule, schedule.failed(predictor, error))

    def ended(self, predictor: int, why: str) -> list[Step]:
        """Free the slot of a predictor whose process is gone. Return the next steps."""
        schedule = self._by_predictor.pop(predictor, None)
        return [] if schedule is None else self._noted(schedule, schedule.ended(predictor, why))

    def lost(self, predictor: int) -> list[Step]:
        """Give an idle predictor whose process is ending no more requests. Return the next steps."""
        schedule = self._by_predictor.get(predictor)
        return [] if schedule is None else self._noted(schedule, schedule.lost(predictor))

    def expire(self, predictor: int, idles: int) -> list[Step]:
        """End a predictor whose keep-alive is over. Return the next steps."""
        schedule = self._by_predictor.get(predictor)
        return [] if schedule is None else self._noted(schedule, schedule.expire(predictor, idles))

    def retire(self, key: DeploymentKey) -> list[Step]:
        """Let a deployment's predictors end."""
        schedule = self._of(key)
        return self._noted(schedule, schedule.retire(key))

    def give_way(self, key: DeploymentKey) -> list[Step]:
        """End an idle predictor of the same tenant for one that finds no room for its model. Return the next steps."""
        schedule = self._of(key)
        return self._noted(schedule, schedule.give_way())

    # -- questions -------------------------------------------------------------------------------------------------

    def is_starting(self, predictor: int) -> bool:
        """Return whether a predictor is loading its model: it has neither loaded it nor been asked to end."""
        schedule = self._by_predictor.get(predictor)
        return schedule is not None and schedule.is_starting(predictor)

    def idles(self, predictor: int) -> int | None:
        """Return the number of a predictor's idle time; None if it is not idle."""
        schedule = self._by_predictor.get(predictor)
        return None if schedule is None else schedule.idles(predictor)

    def counts(self, key: DeploymentKey) -> dict[str, int]:
        """Return how many of a deployment's predictors are in each state, and how many requests wait."""
        return self._of(key).counts(key)

    def validate(self) -> None:
        """Raise InvariantError naming the first rule that does not hold."""
        for schedule in self._schedules.values():
            schedule.validate()

    def _of(self, key: DeploymentKey) -> Schedule:
        tenant = key.tenant
        schedule = self._schedules.get(tenant)
        if schedule is None:
            most = self._of_tenants.get(tenant, self._most) if tenant else self._most
            schedule = self._schedules[tenant] = Schedule(most, self._numbers)
        return schedule

    def _noted(self, schedule: Schedule, steps: list[Step]) -> list[Step]:
        for step in steps:
            if isinstance(step, Start):
                self._by_predictor[step.predictor] = schedule
        return steps
