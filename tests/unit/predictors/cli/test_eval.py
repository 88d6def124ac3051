"""Which tiers and ways `trims eval` takes; whole evaluations are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import argparse

import pytest
from trims_predictors.cli.eval import _chosen

from trims.core.errors import CallerError


def chosen(tiers: str, ways: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _chosen(argparse.Namespace(tiers=tiers, ways=ways))


def test_tiers_and_ways_are_taken_in_their_order_and_once() -> None:
    assert chosen("cpu, disk,cpu", "hot") == (("cpu", "disk"), ("hot",))


@pytest.mark.parametrize(("tiers", "ways"), [("", "hot"), ("cpu", "warm"), ("moon", "hot"), (",", "hot")])
def test_another_tier_or_way_is_refused(tiers: str, ways: str) -> None:
    with pytest.raises(CallerError):
        chosen(tiers, ways)
