"""Runs at each level: whose numbers count, what a level costs, and how that reads."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from recorded import span, trace
from trims_bench.evaluation.leveled import Leveled, leveled_of, levels_to, runs_at_levels
from trims_predictors.tensors import Tensor

from trims.core.errors import InternalError
from trims.trace import spans
from trims.trace.levels import Level

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.trace.reader import Trace

MS = 1_000_000


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    spans.stop()


def a_run(milliseconds: int, layer: int = 0, **said: Any) -> Trace:
    found = [span("predict", 0, milliseconds * MS), span("read profile", 0, 1, **said)]
    if layer:
        found.append(span("fc", 0, layer * MS, "predict", level=Level.FRAMEWORK, kind="layer", type="Linear"))
    return trace(*found)


def test_each_level_has_its_numbers_from_the_runs_in_which_it_was_the_deepest() -> None:
    found = leveled_of(
        "m",
        {
            Level.MODEL: [a_run(10), a_run(12), a_run(11)], Level.FRAMEWORK: [a_run(20, 8)],
            Level.LIBRARY: [a_run(50, 30, not_deeper="no GPU")],
        },
    )  # fmt: skip
    assert [(each.level, each.seconds.value) for each in found.levels] == [
        ("model", 0.011), ("framework", 0.020), ("library", 0.050),
    ]  # fmt: skip
    assert [each.overhead_s for each in found.levels] == [None, pytest.approx(0.009), pytest.approx(0.030)]
    assert [each.seconds for each in found.layers.layers] == [pytest.approx(0.008)]
    assert found.layers.run_s == pytest.approx(0.020)
    assert found.lacks == ("no GPU",)
    assert Leveled.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_a_level_without_a_run_is_no_result() -> None:
    with pytest.raises(InternalError, match="framework"):
        leveled_of("m", {Level.MODEL: [a_run(1)], Level.FRAMEWORK: [trace(span("open", 0, 1))]})


def test_levels_go_from_the_model_down() -> None:
    assert levels_to(Level.SYSTEM) == [Level.MODEL, Level.FRAMEWORK, Level.LIBRARY, Level.SYSTEM]


class Process:
    ended = 0

    async def end(self) -> None:
        self.ended += 1


class Starter:
    """Runs at the level that is asked for; its answers may differ."""

    def __init__(self, *answers: bytes) -> None:
        self.process, self.answers = Process(), list(answers)
        self.levels: list[Level] = []

    async def prepare(self, way: str) -> None:
        assert way == "hot"

    async def start(self, way: str) -> tuple[Any, list[Tensor]]:
        assert way == "hot"
        return self.process, []

    async def again(self, process: Any) -> tuple[list[Tensor], float]:
        assert process is self.process
        self.levels.append(spans.deepest())
        with spans.span("predict"):
            data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [Tensor("y", "UINT8", (1,), data)], 0.0


@pytest.mark.parametrize(("answers", "differ"), [((b"1",), False), ((b"1", b"2"), True)])
def test_levels_take_turns_after_one_round_that_does_not_count(
    tmp_path: Path, answers: tuple[bytes, ...], *, differ: bool
) -> None:
    spans.configure(tmp_path, "tester", everything=True)
    starter: Any = Starter(*answers)
    found = asyncio.run(runs_at_levels(starter, "m", Level.LIBRARY, 2, str(tmp_path)))
    assert starter.levels == [Level.MODEL, Level.FRAMEWORK, Level.LIBRARY] * 3
    assert [each.seconds.samples for each in found.levels] == [2, 2, 2]
    assert (found.answers_differ, starter.process.ended) == (differ, 1)


def test_where_nothing_can_be_written_there_is_no_result_and_the_predictor_ends() -> None:
    starter: Any = Starter(b"1")
    with pytest.raises(InternalError):
        asyncio.run(runs_at_levels(starter, "m", Level.FRAMEWORK, 2, "/nowhere"))
    assert starter.process.ended == 1
