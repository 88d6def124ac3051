"""Tenants: each tenant's predictors come and go as if there were no other tenant."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from trims_predictors.deployment.key import DeploymentKey
from trims_predictors.pool.events import Fail, Job, Limits, Run, Start, Step, Stop
from trims_predictors.pool.scheduler import Schedule

from trims.core.errors import BusyError, PredictorError

ONE = Limits(instances=1, queue=4)


def test_a_tenant_that_fills_its_slots_takes_none_of_another() -> None:
    schedule = Schedule(16, {"greedy": 2})
    started = [schedule.submit(Job(DeploymentKey(f"m{number}", "1", tenant="greedy")), ONE) for number in range(5)]
    assert [len(steps) for steps in started] == [1, 1, 0, 0, 0]
    assert isinstance(schedule.submit(Job(DeploymentKey("m0", "1", tenant="modest")), ONE)[0], Start)
    assert isinstance(schedule.submit(Job(DeploymentKey("m0", "1")), ONE)[0], Start)
    schedule.validate()


def test_numbers_of_predictors_are_given_once_for_all_tenants() -> None:
    schedule = Schedule(4)
    steps = [
        schedule.submit(Job(key), ONE)[0]
        for key in (
            DeploymentKey("m", "1"),
            DeploymentKey("m", "1", tenant="blue"),
            DeploymentKey("m", "1", tenant="red"),
        )
    ]
    assert [step.predictor for step in steps if isinstance(step, Start)] == [1, 2, 3]
    (run,) = schedule.ready(2)
    assert isinstance(run, Run)
    assert run.jobs[0].key == DeploymentKey("m", "1", tenant="blue")
    assert schedule.counts(DeploymentKey("m", "1", tenant="blue"))["busy"] == 1
    assert schedule.counts(DeploymentKey("m", "1"))["starting"] == 1


def test_an_event_of_a_predictor_that_has_ended_changes_nothing() -> None:
    schedule = Schedule(1)
    schedule.submit(Job(DeploymentKey("m", "1", tenant="blue")), ONE)
    (failed,) = schedule.failed(1, PredictorError("no"))[1:]
    assert isinstance(failed, Fail)
    schedule.ended(1, "killed")
    for steps in (
        schedule.ready(1),
        schedule.done(1),
        schedule.lost(1),
        schedule.ended(1, "again"),
        schedule.expire(1, 1),
    ):
        assert steps == []
    assert schedule.failed(1, PredictorError("late")) == []
    assert schedule.idles(1) is None


@pytest.mark.parametrize("seed", range(10))
def test_no_tenant_has_more_than_its_slots_and_each_request_is_answered(seed: int) -> None:  # noqa: C901
    dice, most = random.Random(seed), {"greedy": 3, "modest": 1, "": 2}
    schedule = Schedule(2, {name: count for name, count in most.items() if name})
    running: dict[int, str] = {}
    busy: dict[int, tuple[Job, ...]] = {}
    starting: set[int] = set()
    open_jobs: Counter[str] = Counter()

    def follow(steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Start):
                running[step.predictor] = step.key.tenant
                starting.add(step.predictor)
            elif isinstance(step, Run):
                busy[step.predictor] = step.jobs
            elif isinstance(step, Stop):
                starting.discard(step.predictor)
                del running[step.predictor]
                follow(schedule.ended(step.predictor, "stopped"))
            else:
                open_jobs[step.job.key.tenant] -= 1

    def go_on() -> None:
        if busy and (not starting or dice.random() < 0.5):
            predictor = dice.choice(list(busy))
            for job in busy.pop(predictor):
                open_jobs[job.key.tenant] -= 1
            follow(schedule.done(predictor))
        elif starting:
            predictor = dice.choice(list(starting))
            starting.discard(predictor)
            follow(schedule.ready(predictor))

    for _ in range(400):
        tenant = dice.choices(list(most), [6, 1, 1])[0]
        if dice.random() < 0.5:
            key = DeploymentKey(f"m{dice.randrange(6)}", "1", tenant=tenant)
            try:
                steps = schedule.submit(Job(key), ONE)
            except BusyError:
                continue
            open_jobs[tenant] += 1
            follow(steps)
        else:
            go_on()
        schedule.validate()
        held = Counter(running.values())
        assert all(held[name] <= count for name, count in most.items())
    while busy or starting:
        go_on()
    assert not +open_jobs


def test_a_tenant_that_finds_no_room_ends_no_predictor_of_another() -> None:
    schedule = Schedule(4)
    for predictor, tenant in ((1, "blue"), (2, "red")):
        schedule.submit(Job(DeploymentKey("m", "1", tenant=tenant)), ONE)
        schedule.ready(predictor)
        schedule.done(predictor)
    assert schedule.give_way(DeploymentKey("other", "1", tenant="red")) == [Stop(2)]
    assert schedule.give_way(DeploymentKey("other", "1", tenant="red")) == []
    schedule.validate()
