"""A span while it is recorded, and where it goes."""

from __future__ import annotations

import threading
import time

from trims.trace.context import SpanContext, current, new_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType
    from typing import Any, Protocol

    from typing_extensions import Self

    from trims.trace.levels import Level

    class SpanSink(Protocol):
        """Where spans go. No method blocks."""

        def began(self, span: Span) -> None:
            """Note that a span is open."""

        def ended(self, span: Span) -> None:
            """Take a span that has ended."""

    class Sink(SpanSink, Protocol):
        """Where spans of this process go, and its counters."""

        def count(self, name: str, value: float) -> None:
            """Take the value of a counter at this moment."""

        def close(self) -> None:
            """Take nothing more."""

        def begin_again(self) -> None:
            """Forget everything: it is of the process that this one was forked from."""


_clock = time.monotonic_ns
#: Attribute of a span that failed: what OpenTelemetry's protocols without a status of spans call its description.
FAILURE = "otel.status_description"


class Span:
    """A timed step; a context manager. Within its block it is the parent of the spans that begin there.

    Attributes:
        context: Ids of its trace and of the span itself.
        parent_id: Id of the span that it is a part of; empty for the first of a trace.
        start_ns: Start on the clock of `time.monotonic_ns`, which all processes of a machine share.
        end_ns: End on the same clock; 0 while it runs.
        thread: Kernel's id of the thread that began it.
        attributes: JSON values, named as OpenTelemetry names them where it does; sizes end in `_bytes`.
    """

    __slots__ = (
        "_sink", "_token", "attributes", "context", "end_ns", "level", "name", "parent_id", "start_ns", "thread",
    )  # fmt: skip

    def __init__(
        self, sink: SpanSink, name: str, level: Level, parent: SpanContext | None, attributes: dict[str, Any]
    ) -> None:
        self._sink = sink
        self._token: Token[SpanContext | None] | None = None
        self.name = name
        self.level = level
        self.context = new_context(parent)
        self.parent_id = "" if parent is None else parent.span_id
        self.attributes = attributes
        self.thread = threading.get_native_id()
        self.end_ns = 0
        self.start_ns = _clock()
        sink.began(self)

    @classmethod
    def measured(
        cls,
        sink: SpanSink,
        name: str,
        level: Level,
        parent: SpanContext,
        *,
        times_ns: tuple[int, int],
        thread: int,
        attributes: dict[str, Any] | None = None,
    ) -> SpanContext:
        """Record a span whose times are known; return its identity.

        Args:
            sink: Takes it.
            parent: What it is a part of.
            times_ns: When it began and ended, on the clock of `time.monotonic_ns`.
            thread: Kernel's id of the thread that did it.
        """
        made = cls.__new__(cls)
        made._sink, made._token, made.name, made.level = sink, None, name, level
        made.context, made.parent_id, made.attributes, made.thread = (
            new_context(parent), parent.span_id, attributes or {}, thread,
        )  # fmt: skip
        made.start_ns, made.end_ns = times_ns
        sink.ended(made)
        return made.context

    def set(self, **attributes: Any) -> None:
        """Add attributes."""
        self.attributes.update(attributes)

    def end(self, error: BaseException | None = None, at_ns: int = 0) -> None:
        """End it. Idempotent: completions come twice.

        Args:
            error: What it ended with; its class becomes the attribute `error.type`.
            at_ns: When it ended, on the clock of `time.monotonic_ns`; 0 for now.
        """
        if not self.end_ns:
            self.end_ns = at_ns or _clock()
            if error is not None:
                self.attributes["error.type"] = type(error).__name__
            self._sink.ended(self)

    def __enter__(self) -> Self:
        self._token = current.set(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current.reset(self._token)
            self._token = None
        self.end(error)


class _Off:
    """Stands where no span is recorded."""

    __slots__ = ()
    context = None

    def set(self, **attributes: Any) -> None:
        """Do nothing."""

    def end(self, error: BaseException | None = None) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __bool__(self) -> bool:
        return False


OFF = _Off()
AnySpan = Span | _Off


def row_of(span: Span) -> list[Any]:
    """Return a span as it stands in a file."""
    context = span.context
    return [
        context.trace_id, context.span_id, span.parent_id, span.name, int(span.level), span.start_ns, span.end_ns,
        span.thread, span.attributes,
    ]  # fmt: skip
