"""Reports of samples: rows, stages, what was discarded, and answers that differ."""

from __future__ import annotations

import dataclasses

import pytest
from trims_predictors.evaluation import report
from trims_predictors.evaluation.evaluation import Sample


def samples(tier: str, way: str, seconds: float, count: int = 5, digest: str = "d") -> list[Sample]:
    return [
        Sample(
            tier, way, number, seconds, {"open": seconds * 0.75, "unattributed": seconds * 0.25}, (0.1,), digest, "t"
        )
        for number in range(count)
    ]


def test_a_row_has_its_speed_up_over_a_fresh_process_from_the_same_tier() -> None:
    found = report.rows([*samples("cpu", "fresh", 1.0), *samples("cpu", "template", 0.25), *samples("-", "hot", 0.1)])
    assert [(row.tier, row.way, row.speed_up) for row in found] == [
        ("cpu", "fresh", 1.0), ("cpu", "template", 4.0), ("-", "hot", None),
    ]  # fmt: skip
    assert (found[1].ideal_s, found[1].share_of_ideal, found[1].accounted) == (0.1, pytest.approx(0.4), 0.75)
    assert list(found[0].stages) == ["open", "unattributed"]


def test_samples_that_do_not_count_are_counted_with_their_reason() -> None:
    bad = [Sample("disk", "fresh", 9, why_not="cached")] * 2
    found = report.rows([*samples("disk", "fresh", 1.0), *bad])
    assert (found[0].seconds.samples, found[0].discarded) == (5, {"cached": 2})
    assert report.discarded(bad) == {"disk fresh: cached": 2}
    assert report.rows(bad) == []
    assert report.lines(bad)[0] == "no sample counts"


def test_answers_that_differ_are_reported_and_not_averaged_away() -> None:
    same, other = samples("cpu", "fresh", 1.0), samples("cpu", "template", 1.0, digest="other")
    assert not report.answers_differ(same)
    assert report.answers_differ([*same, *other])
    assert any("differ" in line for line in report.lines([*same, *other]))


def test_text_and_json_have_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    taken = [*samples("cpu", "fresh", 1.0, 2), *samples("disk", "fresh", 12.0)]
    text = report.lines(taken)
    assert [line.split()[:2] for line in text[1:3]] == [["cpu", "fresh"], ["disk", "fresh"]]
    assert "no verdict" in text[1]
    assert "no verdict" not in text[2]
    told = report.as_json(report.rows(taken)[1])
    assert (told["seconds"]["value"], told["verdict"], told["stages"]["open"]) == (12.0, "", 9.0)
    assert dataclasses.asdict(report.rows(taken)[1])["trace_id"] == "t"
