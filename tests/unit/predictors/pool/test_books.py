"""Books of the scheduler: what counts as serving, and which request is the first."""

from __future__ import annotations

from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.pool.books import Queue, Slots
from trims_predictors.pool.events import Job, Limits


def test_a_queue_counts_predictors_that_start_idle_or_run() -> None:
    queue = Queue(DeploymentKey("m"), Limits(), Slots(4))
    queue.starting.add(1)
    queue.idle[2] = None
    queue.busy.update((3, 4))
    assert queue.serving == 4


def test_the_first_request_is_the_one_that_came_first() -> None:
    queue, jobs = Queue(DeploymentKey("m"), Limits(), Slots(4)), [Job(DeploymentKey("m")) for _ in range(2)]
    for job in jobs:
        queue.jobs.add(job)
    assert queue.first() is jobs[0]
