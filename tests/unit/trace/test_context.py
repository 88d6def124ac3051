"""W3C's `traceparent`: what is taken, and what is not."""

from __future__ import annotations

import itertools
import os

import pytest

from trims.trace import context
from trims.trace.context import SpanContext, new_context, new_id, parse_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_context_comes_back_as_it_was_handed_on() -> None:
    one = SpanContext(TRACE, SPAN)
    assert str(one) == f"00-{TRACE}-{SPAN}-01"
    assert parse_context(str(one)) == one


def test_a_child_is_of_its_parents_trace_and_a_first_span_of_its_own() -> None:
    parent = new_context(None)
    child, other = new_context(parent), new_context(None)
    assert child.trace_id == parent.trace_id
    assert len({parent.span_id, child.span_id, other.span_id}) == 3
    assert other.trace_id != parent.trace_id


def test_a_later_version_may_say_more() -> None:
    assert parse_context(f"01-{TRACE}-{SPAN}-01-more") == SpanContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "text",
    [
        None, 7, "", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n", "0" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_context_is_none(text: object) -> None:
    assert parse_context(text) is None


def test_a_trace_that_its_caller_does_not_record_is_none() -> None:
    assert parse_context(f"00-{TRACE}-{SPAN}-00") is None


def test_ids_are_of_sixteen_digits_and_a_forked_process_has_others() -> None:
    mine = {new_id() for _ in range(100)}
    assert len(mine) == 100
    assert all(len(each) == 16 and int(each, 16) for each in mine)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    other = int(os.read(reader, 16), 16)
    os.close(reader)
    os.close(writer)
    assert all(abs(other - int(each, 16)) > 1000 for each in mine), "its numbers go up from another beginning"


def test_no_id_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context._ids, "next", itertools.count((1 << 64) - 1).__next__)
    assert [new_id(), new_id()] == ["f" * 16, f"{1:016x}"]
