"""Two evaluations side by side."""

from __future__ import annotations

from dataclasses import replace

from evaluations import evaluated, samples
from trims_bench.evaluation.report import explain

STACK = {"processors": 2, "libraries": {"torch": "2.1"}}


def test_a_difference_is_attributed_to_stages_and_to_what_differs() -> None:
    one = evaluated(samples("cpu", "fresh", 1.0), stack=STACK)
    other = evaluated(samples("cpu", "fresh", 2.0), stack={**STACK, "libraries": {"torch": "2.2"}}, key="other")
    (change,) = explain.changes(one, other)
    assert (change.title, change.ratio, change.is_sure) == ("cpu fresh", 2.0, True)
    assert change.stages == {"open": 0.75, "unattributed": 0.25}
    assert list(change.stages) == ["open", "unattributed"], "the largest first"
    assert len(explain.causes(one, other)) == 2
    told = explain.as_json(one, other)
    assert "libraries.torch: 2.1 -> 2.2" in told["differences"]
    assert told["changes"][0]["before_s"] == 1.0


def test_equal_stacks_are_said_and_a_difference_within_the_noise_is_no_finding() -> None:
    one, other = evaluated(samples("cpu", "fresh", 1.0, 2)), evaluated(samples("cpu", "fresh", 1.1, 2))
    text = explain.lines(one, other)
    assert text[-1] == "the stacks are equal"
    assert [each.is_sure for each in explain.changes(one, other)] == [False]
    assert len(text) == 3, "no stage is named"


def test_medians_far_apart_differ_however_wide_their_intervals_are() -> None:
    fast = [replace(each, seconds=0.001 * (number + 1)) for number, each in enumerate(samples("-", "hot", 1.0))]
    one, other = evaluated(fast), evaluated(samples("-", "hot", 0.3))
    (change,) = explain.changes(one, other)
    assert change.is_sure
    assert change.ratio == 100.0


def test_starts_that_only_one_has_are_left_out() -> None:
    one, other = evaluated(samples("cpu", "fresh", 1.0)), evaluated(samples("disk", "fresh", 1.0), model="n")
    assert explain.changes(one, other) == []
    assert explain.causes(one, other) == ["model: m -> n"]
