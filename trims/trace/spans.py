"""A span and the tracer that collects them. Off, it costs one check."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

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
        enabled: False makes `span` do nothing and give None.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.spans: deque[Span] = deque(maxlen=_KEPT_SPANS)

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Span | None]:
        """Time a block. The span is kept also if the block raises; then it carries the error's class."""
        return self._timed(name, attributes) if self.enabled else _OFF

    @contextmanager
    def _timed(self, name: str, attributes: dict[str, Any]) -> Iterator[Span]:
        span = Span(name, time.monotonic_ns(), 0, threading.get_ident(), attributes)
        try:
            yield span
        except BaseException as error:
            span.attributes["error"] = type(error).__name__
            raise
        finally:
            span.duration_ns = time.monotonic_ns() - span.start_ns
            self.spans.append(span)


_OFF = nullcontext()
