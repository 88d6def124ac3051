"""Trace context: which trace and span the code that runs now belongs to, in W3C's form between processes.

Source: https://www.w3.org/TR/trace-context/ (version 00 of `traceparent`).
"""

from __future__ import annotations

import itertools
import os
from contextvars import ContextVar

from trims.core.named import NamedTuple

#: Variable by which a process hands its context to those that it starts.
VARIABLE = "TRACEPARENT"
#: Letters of the parts: version, trace, span and flags; a later version may have more parts.
_LENGTHS = [2, 32, 16, 2]
_DIGITS = frozenset("0123456789abcdef")
#: Flag of a `traceparent`: the trace is recorded.
SAMPLED = 1
_MOST_ID = (1 << 64) - 1


class SpanContext(NamedTuple):
    """Identity of a span: its trace (32 hexadecimal digits) and its own id (16).

    Attributes:
        level: The deepest that is recorded of this part of the trace; None for what the process is set to.
    """

    trace_id: str
    span_id: str
    level: int | None = None

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


#: The span that the running code belongs to; None outside of every trace.
current: ContextVar[SpanContext | None] = ContextVar("trims_span", default=None)


class _Ids:
    """Ids of spans: numbers that go up from one drawn at random, which costs a third of drawing each."""

    def __init__(self) -> None:
        self.begin_again()

    def begin_again(self) -> None:
        """Draw another beginning: a process that was forked would go on with its parent's numbers."""
        self.next = itertools.count(int.from_bytes(os.urandom(8), "big") | 1).__next__


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.begin_again)


def new_id() -> str:
    """Return an id for a span."""
    return f"{_ids.next() & _MOST_ID or _ids.next() & _MOST_ID:016x}"


def new_context(parent: SpanContext | None) -> SpanContext:
    """Return the identity of a new span: of its parent's trace, or of a trace of its own."""
    if parent is None:
        return SpanContext(os.urandom(16).hex(), new_id())
    return SpanContext(parent[0], new_id(), parent[2])


def parse_context(text: object) -> SpanContext | None:
    """Return the context in a `traceparent`; None if it is none, or says that the trace is not recorded."""
    found = _fields(text)
    return None if found is None or not int(found[2], 16) & SAMPLED else SpanContext(found[0], found[1])


def trace_of(text: object) -> str:
    """Return the trace id in a `traceparent`, recorded or not; empty if that is none."""
    found = _fields(text)
    return "" if found is None else found[0]


def _fields(text: object) -> tuple[str, str, str] | None:
    """Return the trace, the span and the flags of a `traceparent`; None if it is none."""
    if not isinstance(text, str) or len(text) >= 1000:
        return None
    parts = text.split("-", 4)
    if [len(part) for part in parts[:4]] != _LENGTHS or not _DIGITS.issuperset("".join(parts[:4])):
        return None
    version, trace_id, span_id, flags = parts[:4]
    if version == "ff" or (version == "00" and len(parts) > 4) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return trace_id, span_id, flags
