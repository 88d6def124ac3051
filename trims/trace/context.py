"""Trace context: which trace and span the code that runs now belongs to, in W3C's form between processes.

Source: https://www.w3.org/TR/trace-context/ (version 00 of `traceparent`).
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from typing import NamedTuple

#: Variable by which a process hands its context to those that it starts.
VARIABLE = "TRACEPARENT"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
_SAMPLED = 1


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


def new_context(parent: SpanContext | None) -> SpanContext:
    """Return the identity of a new span: of its parent's trace, or of a trace of its own."""
    # Not `random`: processes that were forked from one template would draw the same numbers.
    own = os.urandom(8).hex()
    return SpanContext(os.urandom(16).hex(), own) if parent is None else parent._replace(span_id=own)


def parse_context(text: object) -> SpanContext | None:
    """Return the context in a `traceparent`; None if it is none, or says that the trace is not recorded."""
    found = _FORM.match(text) if isinstance(text, str) and len(text) < 1000 else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanContext(trace_id, span_id) if int(flags, 16) & _SAMPLED else None
