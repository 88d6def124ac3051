"""Refusals of `trims.evaluate` before anything is asked; whole ones are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

from typing import Any

import pytest

import trims


@pytest.mark.parametrize(
    "wrong", [{}, {"model": "m", "resume": "1"}, {"model": "m", "tiers": ["moon"]}, {"model": "m", "repeats": 0}]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(trims.errors.CallerError):
        trims.evaluate(**wrong)


def test_without_a_daemon_it_says_so(tmp_path: Any) -> None:
    with pytest.raises(trims.errors.DaemonAwayError):
        trims.evaluate("m", runtime_dir=str(tmp_path))
