"""Acts of a model's code beside answering: forks, threads that finish late. None of it is taken for an answer."""

# fault (code): it forks, and the child returns, raises or exits -> nothing; the predictor's answers are its own

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from fleets import Driver, arrays, drive, register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trims.daemon.main import Daemon


def answers(daemon: Daemon, count: int = 8, **settings: object) -> list[tuple[int, int]]:
    """Return which process answered each of several requests, and the status of the child that it forked."""

    async def work(driver: Driver) -> list[tuple[int, int]]:
        found = [arrays(await driver.ask(x=[1.0])) for _ in range(count)]
        assert driver.pool.counters == {"started_forked": 1}
        return [(int(each["pid"][0]), int(each["status"][0])) for each in found]

    return list(drive(daemon, work, **settings))


@pytest.mark.parametrize(("how", "status"), [("return", 0), ("raise", 1), ("exit0", 0), ("exit3", 3)])
def test_a_child_that_a_prediction_forks_ends_and_answers_nothing(
    how: str, status: int, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    options = {"where": "predict", "how": how}
    register(daemon, checkpoint, predictor={"call": "own_predictors:Forks", "options": options})
    found = answers(daemon)
    assert len({pid for pid, _ in found}) == 1
    assert [each for _, each in found] == [status] * 8


@pytest.mark.parametrize("how", ["return", "raise", "exit0"])
def test_a_child_that_a_load_or_an_unload_forks_ends_and_answers_nothing(
    how: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    options = {"where": "load unload", "how": how}
    register(daemon, checkpoint, predictor={"call": "own_predictors:Forks", "options": options})
    assert len(set(answers(daemon))) == 1


def test_a_child_that_a_step_forks_ends_before_the_next_step(
    daemon: Daemon, checkpoint: Callable[..., Path], folder: Path
) -> None:
    steps = [
        {"call": "own_predictors:fork_in_step", "options": {"how": "return"}},
        {"call": "own_predictors:count_in_step", "options": {"file": str(folder / "count")}},
    ]
    register(daemon, checkpoint, predictor={"call": "own_predictors:Echo"}, postprocess=steps)

    async def work(driver: Driver) -> list[int]:
        return [int(arrays(await driver.ask(x=[1.0]))["count"][0]) for _ in range(3)]

    assert drive(daemon, work) == [1, 2, 3]


# fault (code): a signal handler forks while idle -> nothing; the child ends
@pytest.mark.parametrize("how", ["python", "c"])
def test_a_child_forked_while_nothing_is_asked_takes_no_request(
    how: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Alarmed", "options": {"how": how}, "instances": 1})

    async def work(driver: Driver) -> None:
        pids, forks, number = set(), 0, 0.0
        while forks < 3 or number < 50:
            number += 1.0
            found = arrays(await driver.ask(x=[number]))
            assert found["x"].tolist() == [number], "the answer to another request"
            pids.add(int(found["pid"][0]))
            forks = int(found["forks"][0])
            await asyncio.sleep(0.005)  # the alarm also comes while the predictor waits
        assert len(pids) == 1

    drive(daemon, work, run_deadline_s=30.0)


# fault (code): it keeps inputs and writes to them later -> nothing; the next inputs lie elsewhere
@pytest.mark.parametrize("forks", [False, True])
def test_inputs_that_a_model_keeps_are_not_the_memory_of_the_next_request(
    forks: bool, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    predictor = {"call": "own_predictors:Keeps", "options": {"forks": forks}}
    register(daemon, checkpoint, predictor=predictor)

    async def work(driver: Driver) -> list[Sequence[float]]:
        first = arrays(await driver.ask(x=[1.0, 2.0, 3.0]))
        assert first["x"].tolist() == [1.0, 2.0, 3.0]
        second = arrays(await driver.ask(x=[7.0, 8.0, 9.0]))
        return [second["x"].tolist(), second["kept"].tolist()]

    assert drive(daemon, work) == [[7.0, 8.0, 9.0], [1.0, 2.0, 3.0] if forks else [2.0, 3.0]]
