"""Medians with intervals, and when nothing can be concluded."""

from __future__ import annotations

import numpy as np
import pytest
from trims_bench.evaluation.statistics import LEAST, median_of


def test_an_interval_holds_the_median_and_narrows_with_samples() -> None:
    random = np.random.default_rng(3)
    few, many = (median_of(random.normal(10.0, 1.0, count)) for count in (10, 1000))
    for found in (few, many):
        assert found.low <= found.value <= found.high
        assert found.verdict == ""
    assert many.high - many.low < few.high - few.low
    assert many.value == pytest.approx(10.0, abs=0.2)


def test_the_same_samples_give_the_same_interval() -> None:
    assert median_of([1.0, 2.0, 3.0, 4.0, 9.0]) == median_of([1.0, 2.0, 3.0, 4.0, 9.0])


def test_few_samples_have_their_range_and_no_verdict() -> None:
    found = median_of([3.0, 1.0])
    assert (found.value, found.low, found.high, found.samples) == (2.0, 1.0, 3.0, 2)
    assert found.verdict
    assert median_of([1.0] * LEAST).verdict == ""


def test_a_noisy_machine_has_no_verdict() -> None:
    assert median_of([1.0, 9.0, 2.0, 30.0, 5.0, 1.0]).verdict
