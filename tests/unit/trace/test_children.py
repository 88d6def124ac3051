"""Spans of a child that come with its answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from trims.trace import spans
from trims.trace.children import BEGINS, IN_FILE, Reporter, apart, ask_for_spans, take_spans, take_spans_in_file
from trims.trace.context import current
from trims.trace.levels import Level
from trims.trace.reader import read_traces
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    spans.stop()


def served(message: dict[str, Any]) -> dict[str, Any]:
    """Answer as a child does, which has a sink and a current span of its own."""
    parent, context = spans._sink, current.set(None)
    spans._sink = None
    reporter = Reporter()
    try:
        with reporter.recorded(message), span("work"):
            answer = {"done": True}
        return reporter.add(message, answer)
    finally:
        spans._sink, spans._deepest = parent, 2
        current.reset(context)


def test_a_childs_spans_are_parts_of_its_parents_and_recorded_there(tmp_path: Path) -> None:
    spans.configure(tmp_path, "parent", everything=True)
    with span("ask"):
        answer = served(ask_for_spans({"op": "do"}))
        take_spans(answer, 4711, "child")
    assert answer == {"done": True}
    spans.stop()
    (trace,) = read_traces(tmp_path)
    ask, work = trace.spans
    assert (ask.name, work.name, work.parent_id) == ("ask", "work", ask.span_id)
    assert (work.process.pid, work.process.role) == (4711, "child")


def test_work_outside_of_every_span_is_no_part_of_one_though_everything_is_recorded(tmp_path: Path) -> None:
    spans.configure(tmp_path, "parent", everything=True)
    assert ask_for_spans({"op": "do"}) == {"op": "do"}


def test_stages_of_an_answer_are_spans_of_its_child(tmp_path: Path) -> None:
    spans.configure(tmp_path, "parent", everything=True)
    answer = {"stages": {"input_s": 1.0}, BEGINS: [5]}
    take_spans(answer, 7, "child")  # outside of every span
    assert answer == {"stages": {"input_s": 1.0}}
    with span("ask") as asking:
        take_spans({"stages": {"input_s": 1.0}, BEGINS: [5]}, 7, "child")
    spans.stop()
    (trace,) = read_traces(tmp_path)
    found = next(each for each in trace.spans if each.name == "input")
    assert asking.context is not None
    assert (found.parent_id, found.process.pid, found.start_ns) == (asking.context.span_id, 7, 5)
    take_spans(answer := {BEGINS: [5]}, 7, "child")
    assert answer == {}


def test_stages_are_left_out_where_only_requests_are_recorded(tmp_path: Path) -> None:
    spans.configure(tmp_path, "parent", level=Level.APPLICATION, everything=True)
    with span("ask", Level.APPLICATION):
        take_spans({"stages": {"fork_s": 1.0}, BEGINS: [5]}, 7, "child")
    spans.stop()
    (trace,) = read_traces(tmp_path)
    assert [each.name for each in trace.spans] == ["ask"]


def test_where_nothing_is_recorded_messages_stay_as_they_are() -> None:
    assert ask_for_spans({"op": "do"}) == {"op": "do"}
    assert served({"op": "do"}) == {"done": True}
    answer = {"done": True, "spans": [["nonsense"]]}
    take_spans(answer, 1, "child")
    assert answer == {"done": True}


def rows(count: int) -> list[list[Any]]:
    context = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    return [
        [context[0], f"{n:016x}", context[1], f"layer {n}", 3, n, n + 1, 7, {"kind": "layer"}] for n in range(count)
    ]


def test_more_spans_than_an_answer_takes_come_in_a_file_beside_it(tmp_path: Path) -> None:
    few, many = {"done": True, "spans": rows(20)}, {"done": True, "spans": rows(9000)}
    assert apart(few) == (few, None)
    answer, fd = apart(many)
    assert fd is not None
    assert answer.keys() == {"done", IN_FILE}
    spans.configure(tmp_path, "parent")
    take_spans_in_file(fd, answer[IN_FILE], 4711, "child")
    spans.stop()
    (trace,) = read_traces(tmp_path)
    assert (len(trace.spans), trace.spans[0].process.pid) == (9000, 4711)


def test_a_file_of_spans_is_closed_where_nothing_is_recorded_or_its_length_is_none(tmp_path: Path) -> None:
    for length in (1, "1", None, True):
        _, fd = apart({"spans": rows(9000)})
        assert fd is not None
        take_spans_in_file(fd, length, 1, "child")
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
        if length == 1:
            spans.configure(tmp_path, "parent")
