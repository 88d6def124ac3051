"""The search for the highest rate, against servers of known capacity."""

from __future__ import annotations

import pytest
from trims_bench.workloads.max_rate import MOST_PROBES, TOLERANCE, Probe, least_requests, search


def probes_of(capacity: float, tried: list[float]) -> object:
    def probe(rate: float) -> Probe:
        tried.append(rate)
        return Probe(rate, 1000, 0.1, rate <= capacity, 0.0)

    return probe


@pytest.mark.parametrize("capacity", [3.0, 64.0, 100.0, 777.0, 12_345.0])
def test_the_rate_found_is_held_and_within_the_tolerance_of_the_capacity(capacity: float) -> None:
    tried: list[float] = []
    rate, probes = search(probes_of(capacity, tried), 64.0, 1.0)  # type: ignore[arg-type]
    assert rate is not None
    assert rate <= capacity <= rate * (1 + TOLERANCE)
    assert [each.rate for each in probes] == tried
    assert len(tried) < MOST_PROBES


def test_rates_are_doubled_and_then_bisected() -> None:
    tried: list[float] = []
    search(probes_of(200, tried), 64.0, 1.0)  # type: ignore[arg-type]
    assert tried == [64, 128, 256, 192, 224, 208, 200]


def test_a_server_that_holds_no_rate_ends_the_search_at_the_lowest() -> None:
    tried: list[float] = []
    assert search(probes_of(0, tried), 64.0, 2.0)[0] is None  # type: ignore[arg-type]
    assert tried == [64, 32, 16, 8, 4, 2]


def test_a_server_that_holds_every_rate_ends_the_search_at_its_bound() -> None:
    tried: list[float] = []
    search(probes_of(float("inf"), tried), 1.0, 1.0)  # type: ignore[arg-type]
    assert len(tried) == MOST_PROBES


@pytest.mark.parametrize(("percentile", "least"), [(50, 100), (90, 100), (99, 1000), (99.9, 10_000)])
def test_a_verdict_needs_ten_requests_beyond_the_percentile(percentile: float, least: int) -> None:
    assert least_requests(percentile) == least
