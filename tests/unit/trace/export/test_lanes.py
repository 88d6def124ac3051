"""Lanes: spans on one of them contain each other or do not overlap."""

from __future__ import annotations

from recorded import a_request, span

from trims.trace.export.lanes import in_lanes, name_of


def test_spans_that_overlap_stand_on_lanes_of_their_own() -> None:
    found = {each.name: (name_of(lane), until) for each, lane, until in in_lanes(a_request().spans, 1100)}
    assert found == {
        "open": ("application", 1100), "serve": ("application", 1080), "plan": ("model", 1050),
        "fill": ("model 2", 1060), "copy": ("model", 1100),
    }  # fmt: skip


def test_a_span_within_another_stands_on_its_lane_and_one_that_follows_too() -> None:
    spans = [span("outer", 0, 100), span("inner", 10, 100), span("innermost", 20, 30), span("next", 100, 120)]
    assert {lane[2] for _, lane, _ in in_lanes(spans, 200)} == {0}
