"""A trace divided into stages: every moment counts once, and the stages add up."""

from __future__ import annotations

import pytest
from recorded import DAEMON, a_request, span, trace
from trims_bench.evaluation.stages import UNATTRIBUTED, partition, rank, stage_of


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("process", "process"), ("serve open", "open"), ("fill.cpu", "tier cpu"), ("copy.disk-cpu", "tier disk-cpu"),
        ("import", "import code"), ("prepare", "import framework"), ("load model", "build"), ("something", None),
    ],
)  # fmt: skip
def test_a_span_has_the_stage_of_its_name(name: str, stage: str | None) -> None:
    assert stage_of(name) == stage


def test_stages_add_up_to_the_whole_whatever_overlaps() -> None:
    whole = span("sample", 1000, 1100)
    found = partition(
        trace(
            whole,
            span("process", 1000, 1020, "sample"),
            span("open", 1015, 1060, "sample"),
            span("fill.cpu", 1030, 1050, "open", DAEMON),
            span("fill.cpu inner", 1040, 1200, "open", DAEMON),
            span("predict", 1070, 0, "sample"),
        ),
        whole,
    )
    assert sum(found.values()) == pytest.approx(100e-9)
    assert {name: round(seconds * 1e9) for name, seconds in found.items()} == {
        "process": 15, "open": 15, "tier cpu": 10, "tier cpu inner": 20, "run": 30, UNATTRIBUTED: 10,
    }  # fmt: skip


def test_a_span_that_says_nothing_has_the_stage_of_its_parent() -> None:
    whole = span("sample", 0, 100)
    found = partition(trace(whole, span("open", 0, 80, "sample"), span("step", 10, 50, "open")), whole)
    assert found == {"open": pytest.approx(80e-9), UNATTRIBUTED: pytest.approx(20e-9)}


def test_a_whole_without_parts_is_unattributed() -> None:
    (root,) = [each for each in a_request().spans if each.name == "plan"]
    assert partition(trace(root), root) == {UNATTRIBUTED: pytest.approx(20e-9)}


def test_stages_are_sorted_as_a_start_has_them() -> None:
    names = [UNATTRIBUTED, "run", "tier cpu", "process", "open", "attach"]
    assert sorted(names, key=rank) == ["process", "open", "tier cpu", "attach", "run", UNATTRIBUTED]
