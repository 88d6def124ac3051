"""Digests of answers; starts in each way are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_bench.evaluation import ways
from trims_bench.evaluation.ways import TEMPLATE, Starter, are_close, digest_of
from trims_predictors.tensors import Tensor, from_array

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_a_digest_is_of_names_types_shapes_and_bytes_in_any_order() -> None:
    one, other = Tensor("a", "UINT8", (2,), b"xy"), Tensor("b", "UINT8", (1,), b"z")
    assert digest_of([one, other]) == digest_of([other, one])
    changed = [
        Tensor("c", "UINT8", (2,), b"xy"), Tensor("a", "INT8", (2,), b"xy"), Tensor("a", "UINT8", (1, 2), b"xy"),
        Tensor("a", "UINT8", (2,), b"xz"),
    ]  # fmt: skip
    assert len({digest_of([one]), *(digest_of([each]) for each in changed)}) == 5


def answer(dtype: str, *values: float) -> list[Tensor]:
    return [from_array("y", np.array(values, dtype))]


@pytest.mark.parametrize(
    ("one", "other", "close"),
    [
        (answer("f4", 1.0, 1e-6), answer("f4", 1.0001, 2e-6), True),
        (answer("f4", 1.0, 0.0), answer("f4", 1.1, 0.0), False),
        (answer("f4", np.nan, 1.0), answer("f4", np.nan, 1.0), True),
        (answer("f4", np.inf, 1.0), answer("f4", 1.0, 1.0), False),
        (answer("i8", 1), answer("i8", 2), False),
        (answer("f4", 1.0), answer("f8", 1.0), False),
        (answer("f4", 1.0), [from_array("z", np.ones(1, "f4"))], False),
        (answer("f4", 1.0), [], False),
        (answer("f4"), answer("f4"), True),
    ],
)
def test_answers_are_close_but_for_rounding(one: list[Tensor], other: list[Tensor], close: bool) -> None:
    assert are_close(one, other) == are_close(other, one) == close


class Process:
    how = "forked"

    async def ask(self, message: dict[str, Any], **how: Any) -> dict[str, Any]:
        return {"imported": ["heavy"]}

    async def end(self) -> None:
        pass


class Templates:
    """Learn for two looks."""

    def __init__(self) -> None:
        self.taken, self.looks = 0, 0
        self.taught: list[list[str]] = []
        self.preloads = SimpleNamespace(want=lambda *given: None)

    async def take(self, environment: object) -> Process:
        self.taken += 1
        assert not self.taught or self.looks == 0, "not before it has learned"
        return Process()

    def teach(self, environment: object, modules: Sequence[str]) -> None:
        if not self.taught:
            self.looks = 2
        self.taught.append(list(modules))

    def learning(self) -> list[str]:
        self.looks = max(0, self.looks - 1)
        return ["numpy"] if self.looks else []


def test_a_template_learns_once_what_the_model_imports_before_a_sample_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "_LOOK_S", 0.0)
    monkeypatch.setattr(ways, "load_message", lambda deployment: {})
    templates = Templates()
    deployment: Any = SimpleNamespace(environment="e", model="m", preload=("own",))
    starter = Starter(None, templates, deployment, {1: []}, idle_s=0.0, artifact={})  # type: ignore[arg-type]

    async def prepare() -> None:
        await starter.prepare(TEMPLATE)
        await starter.prepare(TEMPLATE)

    asyncio.run(prepare())
    assert templates.taught == [["own", "heavy"]] * 2, "a second round has nothing new"
    assert templates.taken == 4, "two rounds, and one for each sample"
