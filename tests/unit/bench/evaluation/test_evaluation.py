"""The order of samples, and what becomes of those that fail; whole evaluations are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from trims_bench.evaluation import tiers
from trims_bench.evaluation.evaluation import ANY_TIER, Evaluation, starts
from trims_bench.evaluation.records import Order, Sample, Taken
from trims_bench.evaluation.ways import NoWayError
from trims_predictors.tensors import Tensor

from trims.core.errors import DaemonAwayError, ModelNotFoundError, PredictorError
from trims.trace import spans
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Process:
    async def end(self) -> None:
        pass


class Starter:
    """Answers with the next of some bytes, again and again the last; fails for ways that it is told."""

    def __init__(self, *answers: bytes, fails: str = "") -> None:
        self.answers, self.fails = list(answers), fails
        self.started: list[str] = []

    async def prepare(self, way: str, batch: int) -> None:
        if way == self.fails:
            raise PredictorError("it has no template")

    async def start(self, way: str, batch: int) -> tuple[Any, list[Tensor]]:
        self.started.append(way)
        with span("run"):
            return Process(), (await self.again(Process(), batch))[0]

    async def again(self, process: Any, batch: int) -> tuple[list[Tensor], float]:
        data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [Tensor("y", "UINT8", (len(data),), data)], 0.25


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    spans.configure(tmp_path, "tester", everything=True)
    yield tmp_path
    spans.stop()


def evaluated(
    folder: Path, starter: Starter, monkeypatch: pytest.MonkeyPatch, *, wrong: str = "", done: Any = (),
    ways: tuple[str, ...] = ("fresh", "hot"),
) -> tuple[list[Sample], Evaluation]:  # fmt: skip
    async def bring(daemon: Any, model: str, tier: str, files: Any, *, alone: bool) -> None:
        if tier == "gpu":
            raise tiers.Unreachable("there is no GPU")

    async def verify(daemon: Any, model: str, tier: str, files: Any, *, alone: bool) -> str:
        return wrong

    monkeypatch.setattr(tiers, "bring", bring)
    monkeypatch.setattr(tiers, "verify", verify)
    taken: list[Taken] = []
    evaluation = Evaluation(None, "m", starter, (), str(folder), taken.append)  # type: ignore[arg-type]
    asyncio.run(evaluation.run(starts(order(("gpu", "cpu"), ways)), 2, frozenset(done)))
    assert all(bool(each.spans) != bool(each.sample.trace_id == "") for each in taken)
    return [each.sample for each in taken], evaluation


def order(tiers: tuple[str, ...], ways: tuple[str, ...], batches: tuple[int, ...] = (1,)) -> Order:
    return Order("1", "m", "key", tiers, ways, 1, batches)


def test_a_predictor_that_runs_has_no_tier() -> None:
    assert starts(order(("disk", "cpu"), ("fresh", "hot"), (1, 4))) == [
        ("disk", "fresh", 1), ("cpu", "fresh", 1), (ANY_TIER, "hot", 1), (ANY_TIER, "hot", 4),
    ]  # fmt: skip


def test_the_framework_alone_knows_only_whether_its_file_is_in_memory() -> None:
    assert starts(order(("file", "disk", "cpu", "gpu"), ("alone",))) == [("file", "alone", 1), ("cpu", "alone", 1)]


def test_samples_are_taken_in_turns_and_a_tier_that_cannot_be_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, evaluation = evaluated(folder, Starter(b"same"), monkeypatch)
    assert [(each.tier, each.way, each.number) for each in taken] == [
        ("cpu", "fresh", 0), ("-", "hot", 0), ("cpu", "fresh", 1), ("-", "hot", 1),
    ]  # fmt: skip
    assert evaluation.unreachable == {"gpu": "there is no GPU"}
    for each in taken:
        assert each.why_not == ""
        assert sum(each.stages.values()) == pytest.approx(each.seconds)
        assert (len(each.steady_s), len(each.trace_id)) == (5, 32)
    assert len({each.digest for each in taken}) == 1


def test_what_an_interrupted_evaluation_took_is_not_taken_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = [(("cpu", "fresh", 1), 0), (("-", "hot", 1), 0), (("-", "hot", 1), 1)]
    taken, _ = evaluated(folder, Starter(b"same"), monkeypatch, done=done)
    assert [(each.tier, each.way, each.number) for each in taken] == [("cpu", "fresh", 1)]


def test_a_state_that_is_another_one_is_discarded_and_nothing_is_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = Starter(b"same")
    taken, _ = evaluated(folder, starter, monkeypatch, wrong="half of its file is in memory", ways=("fresh",))
    assert [bool(each.why_not) for each in taken] == [True, True]
    assert starter.started == []


def test_a_start_that_fails_is_discarded_with_its_error_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, _ = evaluated(folder, Starter(b"same", fails="fresh"), monkeypatch)
    assert {(each.way, each.why_not.partition(":")[0]) for each in taken} == {("fresh", "PredictorError"), ("hot", "")}


@pytest.mark.parametrize("error", [DaemonAwayError("it is away"), ModelNotFoundError("it was removed")])
def test_what_every_later_sample_would_fail_at_ends_the_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Lost(Starter):
        async def start(self, way: str, batch: int) -> tuple[Any, list[Tensor]]:
            raise error

    with pytest.raises(type(error)):
        evaluated(folder, Lost(b"same"), monkeypatch)


def test_answers_that_differ_from_run_to_run_are_discarded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, _ = evaluated(folder, Starter(b"one", b"two"), monkeypatch, ways=("fresh",))
    assert [bool(each.why_not) for each in taken] == [True, False]


def test_an_answer_that_is_not_the_first_ones_is_discarded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [*([b"one"] * 6), *([b"two"] * 6)]  # a first run and five steady ones each
    taken, _ = evaluated(folder, Starter(*answers), monkeypatch, ways=("fresh",))
    assert [bool(each.why_not) for each in taken] == [False, True]


def test_a_way_that_a_model_does_not_have_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(Starter):
        async def prepare(self, way: str, batch: int) -> None:
            if way == "alone":
                raise NoWayError("it has none")

    taken, evaluation = evaluated(folder, Without(b"same"), monkeypatch, ways=("alone", "fresh"))
    assert {each.way for each in taken} == {"fresh"}
    assert evaluation.unreachable == {"gpu": "there is no GPU", "alone": "it has none"}
