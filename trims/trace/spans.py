"""A span and the tracer that collects them. Off, it costs one check.

Sinks beyond memory (Chrome JSON, OTLP) read `Tracer.spans`; none is imported here.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT_SPANS = 10_000


@dataclass(slots=True)
class Span:
    """One timed step.

    Attributes:
        name: What was done, `tier.verb` by habit.
        start_ns: On the clock of `time.monotonic_ns`, shared by all processes of a machine.
        duration_ns: 0 while it runs.
        attributes: JSON values; sizes end in `_bytes`.
    """

    name: str
    start_ns: int
    duration_ns: int = 0
    thread: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.duration_ns / 1e9


class Tracer:
    """Keeps the last spans of this process.

    Args:
        enabled: False makes `span` do nothing but give an empty span.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.spans: deque[Span] = deque(maxlen=_KEPT_SPANS)

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[Span]:
        """Time a block. The span is kept also if the block raises; then it carries the error's class."""
        span = Span(name, time.monotonic_ns(), 0, threading.get_ident(), attributes)
        try:
            yield span
        except BaseException as error:
            span.attributes["error"] = type(error).__name__
            raise
        finally:
            span.duration_ns = time.monotonic_ns() - span.start_ns
            if self.enabled:
                self.spans.append(span)


def chrome_trace(spans: list[Span]) -> dict[str, Any]:
    """Spans in the Trace Event Format that Perfetto and chrome://tracing open. Times in microseconds."""
    events = [
        {
            "name": span.name,
            "ph": "X",
            "ts": span.start_ns / 1e3,
            "dur": span.duration_ns / 1e3,
            "pid": os.getpid(),
            "tid": span.thread,
            "args": span.attributes,
        }
        for span in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
