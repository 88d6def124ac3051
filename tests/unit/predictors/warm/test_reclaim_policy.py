"""Which template goes: by the time without use, and by memory; never one that a request waits for."""

from __future__ import annotations

import dataclasses

import pytest
from trims_predictors.warm.reclaim_policy import Limits, Step, Usage, Way, next_end_s, next_step

NOW_S = 1000.0
BOUND = Limits(None, 100)
TIME = Limits(60.0, None)


def old(**fields: object) -> Usage:
    return dataclasses.replace(Usage("old", 60, used_s=900.0), **fields)  # type: ignore[arg-type]


def new(**fields: object) -> Usage:
    return dataclasses.replace(Usage("new", 60, used_s=990.0), **fields)  # type: ignore[arg-type]


def told(step: Step | None) -> tuple[Way, object] | None:
    return None if step is None else (step.way, step.environment)


def step(limits: Limits, *usages: Usage, other_bytes: int = 0) -> tuple[Way, object] | None:
    return told(next_step(usages, limits, NOW_S, other_bytes))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (Way.END, "old")),
        ({"spare_bytes": (10,)}, (Way.END, "old")),
        ({"used_s": 941.0}, None),
        ({"used_s": 940.0}, (Way.END, "old")),
        ({"predictors": 1}, None),
        ({"waited_for": True}, None),
        ({"kept": True}, None),
        ({"nbytes": 0, "spare_bytes": (10,)}, (Way.END, "old")),
    ],
)
def test_a_template_without_use_goes_when_its_time_is_over(fields: dict[str, object], expected: object) -> None:
    assert step(TIME, new(), old(**fields)) == expected


def test_without_limits_nothing_goes() -> None:
    assert step(Limits(), old(used_s=0.0, nbytes=1 << 50)) is None


def test_within_the_bound_nothing_goes() -> None:
    assert step(BOUND, old(nbytes=40), new()) is None
    assert step(BOUND, old(nbytes=40), new(), other_bytes=1) == (Way.END, "old")


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        ((new(spare_bytes=(1,)), old()), (Way.END_SPARE, "new")),
        ((new(spare_bytes=(1,)), old(spare_bytes=(1,))), (Way.END_SPARE, "old")),
        ((new(), old()), (Way.END, "old")),
        ((new(), old(kept=True)), (Way.END, "old")),
        ((new(), old(predictors=1)), (Way.END, "new")),
        ((new(predictors=1), old(predictors=1)), (Way.LEAVE, "old")),
        ((new(predictors=1), old(predictors=1, leaving=True)), (Way.LEAVE, "new")),
        ((new(predictors=1, leaving=True), old(predictors=1, leaving=True)), None),
        ((new(), old(waited_for=True)), (Way.END, "new")),
        ((new(waited_for=True), old(waited_for=True)), None),
        ((new(waited_for=True), old(waited_for=True, spare_bytes=(1,))), (Way.END_SPARE, "old")),
        ((new(waited_for=True, nbytes=200), old(nbytes=0)), None),
    ],
)
def test_over_the_bound_spares_go_first_then_the_template_used_least_recently(
    usages: tuple[Usage, ...], expected: object
) -> None:
    assert step(BOUND, *usages) == expected


def test_a_template_that_was_to_go_with_its_last_predictor_goes_within_the_bound_too() -> None:
    assert step(BOUND, old(nbytes=1, leaving=True)) == (Way.END, "old")
    assert step(BOUND, old(nbytes=1, leaving=True, waited_for=True)) is None


def test_all_at_once_over_the_bound_go_one_by_one_until_it_holds() -> None:
    usages = {str(n): Usage(str(n), 30, (10, 10), used_s=float(n)) for n in range(10)}
    ended: list[tuple[Way, object] | None] = []
    while (found := next_step(list(usages.values()), BOUND, NOW_S)) is not None:
        ended.append(told(found))
        before = usages.pop(str(found.environment))
        if found.way is Way.END_SPARE:
            usages[str(found.environment)] = dataclasses.replace(before, spare_bytes=before.spare_bytes[1:])
    spares = [(Way.END_SPARE, str(n)) for n in range(10) for _ in range(2)]
    assert ended == [*spares, *((Way.END, str(n)) for n in range(7))]


def test_the_next_end_is_that_of_the_template_whose_time_is_over_first() -> None:
    assert next_end_s([new(), old()], TIME) == 960.0
    assert next_end_s([new(), old(predictors=1)], TIME) == 1050.0
    assert next_end_s([new(kept=True), old(waited_for=True)], TIME) is None
    assert next_end_s([new()], BOUND) is None
    assert next_end_s([], TIME) is None
