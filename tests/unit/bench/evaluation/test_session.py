"""Wishes that cannot be granted, and where evaluations are kept; whole ones are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from trims_bench.evaluation.database.connection import VARIABLE, database_url
from trims_bench.evaluation.session import Wish, only_evaluation

from trims.core.errors import BusyError, CallerError


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"model": "m", "resume": "1"}, {"model": "m", "tiers": ()}, {"model": "m", "tiers": ("moon",)},
        {"model": "m", "ways": ("warm",)}, {"model": "m", "repeats": 0}, {"model": "m", "repeats": 10_001},
        {"model": "m", "batches": ()}, {"model": "m", "batches": (0,)}, {"model": "m", "idle_s": -1.0},
        {"model": "m", "idle_s": float("nan")},
    ],
)  # fmt: skip
def test_a_wish_that_cannot_be_granted_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        Wish(**wrong)


def test_two_evaluations_do_not_run_at_once(tmp_path: Path) -> None:
    with only_evaluation(tmp_path):
        failed: list[type[BaseException]] = []

        def other() -> None:
            try:
                with only_evaluation(tmp_path):
                    pass
            except BusyError as error:
                failed.append(type(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
        assert failed == [BusyError]
    with only_evaluation(tmp_path):
        pass


def test_the_database_is_the_named_one_the_variables_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert database_url("", Path("/state")) == "sqlite:////state/evaluations.db"
    monkeypatch.setenv(VARIABLE, "postgresql://u@h/x")
    assert database_url("", Path("/state")) == "postgresql://u@h/x"
    assert database_url("sqlite:////f", Path("/state")) == "sqlite:////f"
