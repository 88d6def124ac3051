"""Rows of samples: medians, speed-ups, batches, what was discarded, and answers that differ."""

from __future__ import annotations

import json

import pytest
from evaluations import evaluated, samples
from trims_bench.evaluation.records import Sample
from trims_bench.evaluation.report import rows


def test_a_row_has_its_speed_up_over_the_framework_alone_and_over_a_fresh_process() -> None:
    found = rows.rows(
        [
            *samples("file", "alone", 4.0), *samples("cpu", "alone", 2.0), *samples("disk", "template", 1.0),
            *samples("cpu", "fresh", 1.0), *samples("cpu", "template", 0.25), *samples("-", "hot", 0.1),
        ]
    )  # fmt: skip
    assert [(row.tier, row.way, row.over_alone, row.over_fresh) for row in found] == [
        ("file", "alone", 1.0, None), ("cpu", "alone", 1.0, 0.5), ("disk", "template", 4.0, None),
        ("cpu", "fresh", 2.0, 1.0), ("cpu", "template", 8.0, 4.0), ("-", "hot", None, None),
    ]  # fmt: skip
    row = found[4]
    assert (row.ideal_s, row.share_of_ideal, row.accounted) == (0.1, pytest.approx(0.4), 0.75)
    assert list(row.stages) == ["open", "unattributed"]


def test_samples_that_do_not_count_are_counted_with_their_reason() -> None:
    bad = [Sample("disk", "fresh", 9, why_not="cached")] * 2
    found = rows.rows([*samples("disk", "fresh", 1.0), *bad])
    assert (found[0].seconds.samples, found[0].discarded) == (5, {"cached": 2})
    assert rows.discarded(bad) == {"disk fresh: cached": 2}
    assert rows.rows(bad) == []


def test_answers_that_differ_are_reported_for_each_batch() -> None:
    same, other = samples("cpu", "fresh", 1.0), samples("cpu", "template", 1.0, digest="other")
    assert not rows.answers_differ([*same, *samples("-", "hot", 1.0, digest="of two rows", batch=2)])
    assert rows.answers_differ([*same, *other])
    assert not rows.answers_differ([*same, *samples("cpu", "alone", 1.0, digest="of another order")])


def test_the_optimal_batch_is_the_first_whose_doubling_gains_little() -> None:
    taken = [
        each
        for batch, steady_s in ((1, 0.100), (2, 0.110), (4, 0.215), (8, 0.300))
        for each in samples("-", "hot", 1.0, batch=batch, steady_s=steady_s)
    ]
    found = rows.batches(taken)
    assert [(each.batch, each.is_optimal) for each in found] == [(1, False), (2, True), (4, False), (8, False)]
    assert [round(each.per_s, 1) for each in found] == [10.0, 18.2, 18.6, 26.7]
    assert found[0].gain is None
    assert found[1].gain == pytest.approx(0.818, abs=0.001)
    assert rows.batches(samples("-", "hot", 1.0)) == [], "one batch has nothing to compare"
    still_gaining = rows.batches([*samples("-", "hot", 1.0), *samples("-", "hot", 1.0, batch=2)])
    assert [each.is_optimal for each in still_gaining] == [False, True], "the largest, as it still gains"


def test_a_whole_evaluation_is_json() -> None:
    told = json.loads(json.dumps(rows.as_json(evaluated(samples("cpu", "fresh", 12.0)))))
    (row,) = told["rows"]
    assert (row["seconds"]["value"], row["verdict"], row["stages"]["open"], row["trace_id"]) == (12.0, "", 9.0, "t")
    assert (told["id"], told["stack"]["processors"], told["ended"]) == ("20260101-1", 2, True)
