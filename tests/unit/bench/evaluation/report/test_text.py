"""The report of an evaluation in a terminal."""

from __future__ import annotations

from evaluations import evaluated, samples
from trims_bench.evaluation.records import Sample
from trims_bench.evaluation.report.text import lines, times


def test_every_row_and_stage_has_its_line() -> None:
    text = lines(evaluated([*samples("cpu", "fresh", 1.0, 2), *samples("disk", "fresh", 12.0)]))
    assert [line.split()[:2] for line in text[1:3]] == [["cpu", "fresh"], ["disk", "fresh"]]
    assert "no verdict" in text[1]
    assert "no verdict" not in text[2]
    assert [line.split()[:3] for line in text if line.startswith("open")] == [["open", "750.0", "ms"]]


def test_what_was_not_measured_is_said() -> None:
    bad = [Sample("disk", "fresh", 0, why_not="cached")]
    assert lines(evaluated(bad))[0] == "no sample counts"
    differing = [*samples("cpu", "fresh", 1.0), *samples("cpu", "template", 1.0, digest="other")]
    text = "\n".join(lines(evaluated(differing, ended=False, unreachable={"gpu": "no GPU"})))
    for part in ("differ", "gpu: no GPU", "--resume 20260101-1"):
        assert part in text


def test_batches_have_a_table_that_names_the_optimal_one() -> None:
    still = [*samples("-", "hot", 1.0), *samples("-", "hot", 1.0, batch=2)]
    assert any(line.endswith("the largest measured still gains") for line in lines(evaluated(still)))
    taken = [*samples("-", "hot", 1.0), *samples("-", "hot", 1.0, batch=2, steady_s=0.2)]
    assert next(line for line in lines(evaluated(taken)) if "optimal" in line).split()[:2] == ["hot", "1"]


def test_a_ratio_has_one_digit_and_may_be_missing() -> None:
    assert (times(None), times(2.04)) == ("", "2.0x")
