"""Waits of a load, and how long they last, with a process that answers as the test says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from trims_predictors.deployment.loading import load

from trims.core.errors import BusyError, CapacityError, DeadlineError, InUseError, QuotaError, TrimsError

LOADED = {"op": "loaded"}


class Process:
    """Answers each load with the next of these."""

    def __init__(self, *answers: TrimsError | dict[str, Any]) -> None:
        self.dying = False
        self.asked: list[float | None] = []
        self._answers = list(answers)

    async def ask(self, message: dict[str, Any], *, deadline_s: float) -> dict[str, Any]:
        assert deadline_s == 600.0
        self.asked.append(message["deadline_s"])
        answer = self._answers.pop(0)
        if isinstance(answer, TrimsError):
            raise answer
        return answer


def run(process: Process, idle: int = 0) -> Any:
    """A load, with so many other predictors that can be ended for it."""
    left = iter([True] * idle)

    async def make_way() -> bool:
        return next(left, False)

    async def work() -> Any:
        return await load(process, {"op": "load", "deadline_s": None}, 600.0, make_way)  # type: ignore[arg-type]

    return asyncio.run(work())


def test_weights_that_are_being_evicted_are_waited_for() -> None:
    process = Process(InUseError("m: it leaves"), LOADED)
    assert run(process) is LOADED
    assert process.asked == [None, 10.0]


@pytest.mark.parametrize("then", [InUseError("m: it leaves"), DeadlineError("m: late")], ids=["told", "late"])
def test_readers_that_stay_are_told_with_a_remedy(then: TrimsError) -> None:
    process = Process(InUseError("m: it leaves"), then, InUseError("m: it leaves still"))
    with pytest.raises(
        BusyError, match=r"m: it leaves.*; its predictor has waited for 10 s: ask again, or name another place"
    ):
        run(process)


def test_a_load_that_began_within_the_wait_goes_on() -> None:
    process = Process(InUseError("m: it leaves"), DeadlineError("m: it was loaded to cpu"), LOADED)
    assert run(process) is LOADED
    assert process.asked == [None, 10.0, None]


@pytest.mark.parametrize("lack", [CapacityError, QuotaError])
def test_idle_predictors_end_one_after_the_other_for_what_lacks(lack: type[TrimsError]) -> None:
    process = Process(lack("no room"), DeadlineError("late"), lack("no room"), LOADED)
    assert run(process, idle=2) is LOADED
    assert process.asked == [None, 5.0, None, 5.0]
    with pytest.raises(lack, match=r"^still no room$"):
        run(Process(lack("no room"), lack("still no room")), idle=1)


def test_the_end_of_a_process_that_took_too_long_is_told() -> None:
    process = Process(InUseError("m: it leaves"), DeadlineError("it was ended"))
    process.dying = True
    with pytest.raises(DeadlineError, match=r"^it was ended$"):
        run(process)
    with pytest.raises(DeadlineError, match=r"^it was ended$"):
        run(Process(DeadlineError("it was ended")))
