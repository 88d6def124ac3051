"""Fonts that matplotlib opens once and keeps, opened before descriptors are counted."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _fonts() -> None:
    from evaluations import evaluated, samples
    from trims_bench.evaluation.report.plots import picture

    for form in ("svg", "png"):
        picture(evaluated([*samples("-", "hot", 1.0), *samples("-", "hot", 1.0, batch=2)]), form)
