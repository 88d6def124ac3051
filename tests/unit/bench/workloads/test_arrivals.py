"""Times of arrivals, from fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest
from trims_bench.workloads.arrivals import burst_times, check_count, poisson_times
from trims_bench.workloads.order import MOST_REQUESTS

from trims.core.errors import CallerError


def test_equal_seeds_give_equal_times_and_others_do_not() -> None:
    first, again, other = (poisson_times(100, np.random.default_rng(seed), seconds=5) for seed in (1, 1, 2))
    assert (first == again).all()
    assert len(first) != len(other) or (first != other).any()


def test_gaps_of_a_poisson_process_have_the_mean_and_variance_of_the_exponential() -> None:
    rate = 250.0
    times = poisson_times(rate, np.random.default_rng(11), requests=50_000)
    gaps = np.diff(times) / 1e9
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.02)
    assert gaps.var() == pytest.approx(1 / rate**2, rel=0.05)
    assert (gaps > 2 / rate).mean() == pytest.approx(np.exp(-2), abs=0.01)


def test_counts_of_a_poisson_process_have_a_variance_equal_to_their_mean() -> None:
    times = poisson_times(100, np.random.default_rng(2), seconds=1000)
    counts = np.bincount((times // 1_000_000_000).astype(int), minlength=1000)
    assert counts.mean() == pytest.approx(100, rel=0.02)
    assert counts.var() == pytest.approx(100, rel=0.15)


def test_a_poisson_process_ends_at_its_time_or_number_whichever_comes_first() -> None:
    random = np.random.default_rng
    by_time = poisson_times(1000, random(3), seconds=2)
    assert by_time[-1] < 2_000_000_000
    assert (np.diff(by_time) >= 0).all()
    assert len(poisson_times(1000, random(3), seconds=2, requests=10)) == 10
    assert len(poisson_times(1000, random(3), requests=10)) == 10


def test_a_burst_has_its_requests_at_the_same_moment_and_the_rate_on_average() -> None:
    times = burst_times(100, 10, seconds=1)
    assert len(times) == 100
    assert list(np.unique(times)) == [number * 100_000_000 for number in range(10)]
    assert len(burst_times(100, 10, requests=25)) == 25


def test_more_requests_than_a_load_has_are_refused() -> None:
    check_count(MOST_REQUESTS)
    for ask in (
        lambda: check_count(MOST_REQUESTS + 1),
        lambda: poisson_times(1e6, np.random.default_rng(0), seconds=60),
        lambda: burst_times(1e6, 10, seconds=60),
    ):
        with pytest.raises(CallerError):
            ask()
