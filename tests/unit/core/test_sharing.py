"""When sharing pays, from what was measured."""

from __future__ import annotations

import pytest

from trims.core.sharing import LEAST_BYTES, MOST_BYTES, Cost, bounded, break_even, fit

SIZES = tuple((64 << 10) << 2 * step for step in range(5))


@pytest.mark.parametrize("cost", [Cost(5e-4, 4e-11), Cost(3e-5, 7e-10), Cost(0.0, 1e-9), Cost(1e-3, 0.0)])
def test_a_line_is_found_again(cost: Cost) -> None:
    found = fit([(size, cost.fixed_s + size * cost.byte_s) for size in SIZES])
    assert found == pytest.approx(cost, abs=1e-12)


def test_costs_that_fall_with_the_size_are_fixed_ones() -> None:
    found = fit([(size, 1e-3 - size * 1e-12) for size in SIZES])
    assert found.byte_s == 0.0
    assert found.fixed_s == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize(
    ("shared", "alone", "nbytes"),
    [
        (Cost(1e-3, 0.0), Cost(0.0, 1e-9), 1_000_000),
        (Cost(1e-3, 1e-9), Cost(0.0, 1e-9), MOST_BYTES),
        (Cost(1e-3, 2e-9), Cost(0.0, 1e-9), MOST_BYTES),
        (Cost(1.0, 0.0), Cost(0.0, 1e-9), MOST_BYTES),
        (Cost(0.0, 0.0), Cost(1e-3, 1e-9), LEAST_BYTES),
    ],
)
def test_the_break_even_lies_within_its_bounds(shared: Cost, alone: Cost, nbytes: int) -> None:
    assert break_even(shared, alone) == nbytes


@pytest.mark.parametrize(("given", "kept"), [(-1, LEAST_BYTES), (1 << 20, 1 << 20), (1 << 62, MOST_BYTES)])
def test_a_threshold_that_was_sent_is_bounded(given: int, kept: int) -> None:
    assert bounded(given) == kept
