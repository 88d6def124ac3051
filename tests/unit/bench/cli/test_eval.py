"""Options of `trims eval`; whole evaluations are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from trims_bench.cli import eval as command
from trims_bench.cli.eval import _wish
from trims_bench.evaluation.ways import WAYS

from trims.core.errors import CallerError


def wish(*arguments: str) -> Any:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    return _wish(parser.parse_args(["eval", *arguments]))


def test_lists_are_taken_in_their_order_and_once() -> None:
    found = wish("m", "--from", "cpu, disk,cpu", "--how", "hot", "--batch", "4,1,4", "--idle", "0.5")
    assert (found.tiers, found.ways, found.batches, found.idle_s) == (("cpu", "disk"), ("hot",), (4, 1), 0.5)
    assert found.make_inputs is None


def test_without_options_everything_is_measured() -> None:
    found = wish("m")
    assert (found.tiers, found.ways, found.repeats) == (("file", "disk", "cpu"), WAYS, 10)


@pytest.mark.parametrize(
    "wrong",
    [
        ["m", "--from", ""], ["m", "--how", "warm"], ["m", "--from", "moon"], ["m", "--how", ","],
        ["m", "--batch", "x"],
        ["--resume", "1", "--repeat", "3"],
    ],
)  # fmt: skip
def test_another_tier_way_or_batch_is_refused(wrong: list[str]) -> None:
    with pytest.raises(CallerError):
        wish(*wrong)
