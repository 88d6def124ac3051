"""Which jobs run together: those that fit and came in one row, once they are many enough or one has waited."""

from __future__ import annotations

import pytest
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.pool.events import Job, JobQueue, next_batch


def queue_of(*jobs: Job) -> JobQueue:
    queue = JobQueue()
    for each in jobs:
        queue.add(each)
    return queue


def batch(*jobs: Job, rows: int = 4) -> list[int]:
    """Places in the queue of the jobs that run next."""
    chosen = next_batch(queue_of(*jobs), rows)
    return [jobs.index(each) for each in chosen]


def job(rows: int = 1, group: str = "a", *, batch_ready: bool = False) -> Job:
    return Job(DeploymentKey("m", "1"), rows, group, batch_ready=batch_ready)


def test_without_batches_each_job_runs_alone() -> None:
    assert batch(job(), job(), rows=0) == [0]


@pytest.mark.parametrize(("jobs", "expected"), [(3, []), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3])])
def test_jobs_wait_for_others_until_the_batch_is_full(jobs: int, expected: list[int]) -> None:
    assert batch(*(job() for _ in range(jobs))) == expected


def test_a_job_that_has_waited_long_enough_takes_those_behind_it_along() -> None:
    assert batch(job(), job(batch_ready=True), job()) == [0, 1, 2]


def test_a_batch_ends_at_a_job_of_another_group_however_few_it_has() -> None:
    assert batch(job(), job(group="b"), job()) == [0]


def test_a_batch_ends_at_a_job_that_does_not_fit() -> None:
    assert batch(job(2), job(3), job()) == [0]


def test_a_job_of_more_rows_than_a_batch_runs_alone() -> None:
    assert batch(job(9), job()) == [0]


def test_two_jobs_of_the_same_content_are_two_jobs() -> None:
    assert len(queue_of(job(), job())) == 2


def test_a_batch_takes_jobs_of_the_first_level_first() -> None:
    late, first, middle = (Job(DeploymentKey("m", "1"), 1, "a", level=level) for level in (3, 1, 2))
    assert next_batch(queue_of(late, first, middle), 2) == (first, middle)


def test_a_queue_knows_what_waits_and_forgets_empty_levels() -> None:
    queue = queue_of(*(jobs := [Job(DeploymentKey("m", "1"), level=level) for level in (2, 1)]))
    assert (len(queue), list(queue), queue.first()) == (2, jobs[::-1], jobs[1])
    queue.remove(jobs[1])
    with pytest.raises(KeyError):
        queue.remove(jobs[1])
    assert (jobs[0] in queue, jobs[1] in queue, "text" in queue) == (True, False, False)
    queue.clear()
    assert (len(queue), bool(queue), list(queue)) == (0, False, [])
