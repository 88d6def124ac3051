"""Values of evaluations; the database's tests keep and read them."""

from __future__ import annotations

import json

import pytest
from trims_bench.evaluation.records import Order, Sample, Summary, new_id

ORDER = Order("1", "m", "key", ("cpu",), ("fresh", "hot"), 3, (1, 4), stack={"processors": 2}, scenario={"rate": 5})


def test_an_order_goes_through_json_unchanged_and_nothing_else_becomes_one() -> None:
    assert Order.from_json(json.loads(json.dumps(ORDER.as_json()))) == ORDER
    for wrong in ({}, {**ORDER.as_json(), "moon": 1}):
        with pytest.raises((KeyError, TypeError)):
            Order.from_json(wrong)


def test_a_sample_is_of_one_tier_way_and_batch() -> None:
    assert Sample("cpu", "hot", 7, batch=4).where == ("cpu", "hot", 4)


def test_ids_are_of_one_evaluation_each() -> None:
    assert len({new_id() for _ in range(20)}) > 15
    assert Summary("1", "m", 2.0, 3, 4, ended=True).as_json()["wanted"] == 4
