"""A span itself: its end, its attributes, and what stands where none is recorded."""

from __future__ import annotations

from trims.trace.context import current
from trims.trace.levels import Level
from trims.trace.recorder import Collector
from trims.trace.span import OFF, Span


def test_a_span_ends_once_and_goes_to_its_sink_then() -> None:
    sink = Collector()
    span = Span(sink, "one", Level.MODEL, None, {"a": 1})
    assert sink.take() == []
    span.set(b=2)
    span.end()
    ended_ns = span.end_ns
    span.end(ValueError("late"))
    (row,) = sink.take()
    assert row == [*span.context[:2], "", "one", 2, span.start_ns, ended_ns, span.thread, {"a": 1, "b": 2}]


def test_the_context_of_a_block_is_the_one_before_it_after_its_end() -> None:
    with Span(Collector(), "outer", Level.MODEL, None, {}) as outer:
        with Span(Collector(), "inner", Level.MODEL, outer.context, {}) as inner:
            assert current.get() == inner.context
        assert current.get() == outer.context
    assert current.get() is None


def test_where_no_span_is_recorded_everything_may_be_called() -> None:
    with OFF as span:
        span.set(a=1)
        span.end()
    assert not OFF
    assert OFF.context is None
