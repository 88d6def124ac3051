"""Spans of children that answer requests and may write no files: they come with the answers, and the parent records.

The parent adds fields to its request and takes one from the answer; both are messages of JSON values.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from trims.trace.context import SpanContext, current
from trims.trace.levels import Level
from trims.trace.spans import Within, collect, deepest, is_on, recorder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.trace.recorder import Collector

_NOTHING: AbstractContextManager[object] = nullcontext()
_ROWS, IN_FILE = "spans", "spans_in_file"
#: Field with the moments at which the stages of an answer began: nanoseconds, in their order. Their lengths are in it
#: anyway, so that a stage costs no span of its own.
BEGINS = "stages_begin_ns"
#: Bytes of spans that travel in an answer; more of them, such as those of a profile, in a file in memory beside it.
_MOST_IN_ANSWER = 32 << 10


def ask_for_spans(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with what has the child record it as a part of this code's span, if that is recorded."""
    context = current.get() if is_on() else None
    if context is None:  # also where everything is recorded: there is no span here that it could be a part of
        return dict(message)
    return {**message, "trace": (context.trace_id, context.span_id, int(deepest()))}


def take_spans(answer: dict[str, Any], pid: int, role: str) -> None:
    """Remove a child's spans from its answer, and record them; what is no span is left out.

    Args:
        role: What it is, such as `predictor`.
    """
    ours = recorder()
    if ours is None:
        answer.pop(_ROWS, None), answer.pop(BEGINS, None)
        return
    rows, begins = answer.pop(_ROWS, None), answer.pop(BEGINS, None)
    if rows is not None:
        ours.adopt(rows, pid, role)
    context = current.get()
    if begins is not None and context is not None and deepest() >= Level.MODEL:
        ours.adopt_stages(context, answer.get("stages"), begins, pid, role)


def take_spans_in_file(fd: int, nbytes: object, pid: int, role: str) -> None:
    """Record the spans in a file that came with a child's answer, later and elsewhere; nothing is read here.

    Args:
        fd: Closed sooner or later.
        nbytes: The answer's field `IN_FILE`.
    """
    ours = recorder()
    if ours is None or type(nbytes) is not int:
        os.close(fd)
    else:
        ours.adopt_file(fd, nbytes, pid, role)


class Reporter:
    """The child's side. Made once in a process; nothing is collected before a request asks for it."""

    def __init__(self) -> None:
        self._collector: Collector | None = None

    def recorded(self, message: Mapping[str, Any]) -> AbstractContextManager[object]:
        """Collect spans in the block, in which a request is carried out, if it asks for them."""
        trace = message.get("trace")
        if not trace:
            return _NOTHING
        if self._collector is None:
            self._collector = collect()
        return Within(SpanContext(*trace))

    def add(self, message: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request with the spans that it asks for."""
        if self._collector is None or not message.get("trace"):
            return answer
        rows = self._collector.take()
        return {**answer, _ROWS: rows} if rows else answer


def apart(answer: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Return an answer, and a descriptor of the file that its spans are in if they are too many to travel in it.

    The caller sends it as the last one, and closes it.
    """
    if len(answer.get(_ROWS, ())) < _MOST_IN_ANSWER // 1000:  # an attribute may be long, but rarely is
        return answer, None
    lines = (json.dumps(row, separators=(",", ":"), default=str) for row in answer[_ROWS])
    data = "\n".join(lines).encode()
    if len(data) <= _MOST_IN_ANSWER:
        return answer, None
    fd = os.memfd_create("trims-spans", os.MFD_CLOEXEC)
    with open(fd, "wb", buffering=0, closefd=False) as file:
        file.write(data)
    return {**{key: value for key, value in answer.items() if key != _ROWS}, IN_FILE: len(data)}, fd
