"""Forms of an answer."""

from __future__ import annotations

from typing import Any

from trims_predictors.frameworks.transformers.answers import Answer, Streaming
from trims_predictors.frameworks.transformers.generation import Generation


def test_a_form_is_made_only_if_it_is_asked_for() -> None:
    made: list[str] = []

    def form(name: str) -> Any:
        return lambda: made.append(name) or {}

    answer = Answer(form("outputs"), form("rows"), form("kserve"))
    assert made == []
    answer.rows()
    assert made == ["rows"]
    assert answer.extras() == {}


def test_generators_stream() -> None:
    model = Generation.__new__(Generation)
    model.answers_alone = False
    assert isinstance(model, Streaming)
    assert not isinstance(object(), Streaming)
