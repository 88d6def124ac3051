"""A trace as a tree: order, shares, and the time that no part accounts for."""

from __future__ import annotations

import pytest
from recorded import a_request, span, trace

from trims.trace.tree import UNATTRIBUTED, lines, unattributed_s


def test_parts_stand_below_their_whole_in_order_with_what_none_accounts_for() -> None:
    found = [(line.depth, line.name, line.role) for line in lines(a_request())]
    assert found == [
        (0, "open", "client"), (1, "serve", "daemon"), (2, "plan", "daemon"), (2, "fill", "daemon"),
        (2, "copy", "daemon"), (2, UNATTRIBUTED, ""), (1, UNATTRIBUTED, ""),
    ]  # fmt: skip
    by_name = {line.name: line for line in lines(a_request()) if line.span is not None}
    assert (by_name["open"].share, by_name["serve"].share, by_name["plan"].share) == (1.0, 0.6, 0.2)
    assert (by_name["copy"].seconds, by_name["copy"].share) == (None, None)
    assert by_name["serve"].begin_s == pytest.approx(20e-9)


def test_times_that_overlap_count_once_and_only_within_the_whole() -> None:
    whole = span("whole", 1000, 1100)
    parts = [span("a", 900, 1020), span("b", 1010, 1030), span("c", 1090, 1200), span("d", 1095, 0)]
    assert unattributed_s(whole, parts) == pytest.approx(60e-9)
    assert unattributed_s(whole, []) == pytest.approx(100e-9)
    assert unattributed_s(span("running", 1000, 0), parts) is None


def test_short_spans_are_left_out_with_their_parts() -> None:
    assert [line.name for line in lines(a_request(), 25e-9)] == ["open", "serve", "copy", UNATTRIBUTED]


def test_spans_whose_parents_were_not_recorded_stand_first_in_trees_of_their_own() -> None:
    found = lines(trace(span("a", 0, 10, "lost"), span("b", 20, 40, "gone"), span("c", 20, 30, "b")))
    assert [(line.depth, line.name, line.share) for line in found][:3] == [(0, "a", 1.0), (0, "b", 1.0), (1, "c", 0.5)]
