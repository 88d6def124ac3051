"""Spans of a child that come with its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trims.trace import spans
from trims.trace.children import Reporter, ask_for_spans, take_spans
from trims.trace.context import current
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


def test_where_nothing_is_recorded_messages_stay_as_they_are() -> None:
    assert ask_for_spans({"op": "do"}) == {"op": "do"}
    assert served({"op": "do"}) == {"done": True}
    answer = {"done": True, "spans": [["nonsense"]]}
    take_spans(answer, 1, "child")
    assert answer == {"done": True}
