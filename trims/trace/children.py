"""Spans of children that answer requests and may write no files: they come with the answers, and the parent records.

The parent adds fields to its request and takes one from the answer; both are messages of JSON values.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from trims.trace.levels import Level
from trims.trace.spans import collect, continued, deepest, is_recording, recorder, traceparent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.trace.recorder import Collector

_NOTHING: AbstractContextManager[object] = nullcontext()


def ask_for_spans(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with what has the child record it as a part of this code's span, if that is recorded."""
    if not is_recording():
        return dict(message)
    return {**message, "trace": traceparent(), "trace_level": deepest().name}


def take_spans(answer: dict[str, Any], pid: int, role: str) -> None:
    """Remove a child's spans from its answer, and record them; what is no span is left out.

    Args:
        answer: Of the child.
        pid: Its process.
        role: What it is, such as `predictor`.
    """
    rows, ours = answer.pop("spans", None), recorder()
    if rows is not None and ours is not None:
        ours.adopt(rows, pid, role)


class Reporter:
    """The child's side. Made once in a process; nothing is collected before a request asks for it."""

    def __init__(self) -> None:
        self._collector: Collector | None = None

    def recorded(self, message: Mapping[str, Any]) -> AbstractContextManager[object]:
        """Collect spans in the block, in which a request is carried out, if it asks for them."""
        context = message.get("trace")
        if not context:
            return _NOTHING
        if self._collector is None:
            self._collector = collect(Level.parse(str(message.get("trace_level", Level.MODEL.name))))
        return continued(context)

    def add(self, message: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request with the spans that it asks for."""
        if self._collector is None or not message.get("trace"):
            return answer
        return {**answer, "spans": self._collector.take()}
