"""Export of spans to a collector by OpenTelemetry's SDK (OTLP over HTTP): as they end, or of traces that were read.

Needs `trims[otel]`. The environment says where, as OpenTelemetry's specification has it: `OTEL_EXPORTER_OTLP_ENDPOINT`
and others.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trims.core.errors import DaemonAwayError
from trims.trace import context
from trims.trace.reader import Process, as_record
from trims.trace.span import FAILURE, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trims.trace.reader import Record
    from trims.trace.span import Span

#: Spans in one request to the collector.
_BATCH = 512
#: Seconds to send what is left when a process ends, and between two log lines about a collector that takes nothing.
_FLUSH_S, _QUIET_S = 5.0, 60.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
#: W3C's flag of a trace whose id was drawn at random, and what later versions of the SDK have to ask for that.
_RANDOM, _ASKS_RANDOM = 2, "is_trace_id_random"
#: Attributes that only a server's span of a request has.
_OF_REQUESTS = frozenset(("http.request.method", "rpc.system"))
_W3C = TraceContextTextMapPropagator()
_VERSION = version("trims")
_LIMITS = SpanLimits()
_log = logging.getLogger(__name__)


class _Ended(NamedTuple):
    """A span in the SDK's queue, with the `tracestate` of its trace. The queue looks at `context` only."""

    span: Span
    state: str
    context: SpanContext = SpanContext(1, 1, is_remote=False, trace_flags=_SAMPLED)


class Exporter:
    """Sends spans of this process as they end; a thread of the SDK's does, from a queue that drops what is too much.

    Args:
        role: What the process is, such as `endpoint`: its service is `trims-ROLE`, unless the environment names one.
    """

    def __init__(self, role: str) -> None:
        self._role = role
        named = str(Resource.create().attributes[SERVICE_NAME])
        self._resource = _resource(os.getpid(), f"trims-{role}" if named.startswith("unknown_service") else named)
        self._sender = OTLPSpanExporter()
        self._queue = BatchSpanProcessor(self)
        provider = TracerProvider(shutdown_on_exit=False)
        self._sampler, self._ids = provider.sampler, provider.id_generator
        self._complaints = Complaints()

    def sample(self, carrier: Mapping[str, str]) -> tuple[context.SpanContext, str, int]:
        """Return what a request is a part of, its `tracestate`, and its flags: whether its spans are to be exported.

        Args:
            carrier: The caller's context, in W3C's headers. Without one the request begins a trace.
        """
        found = _W3C.extract(carrier, Context())
        parent = get_current_span(found).get_span_context()
        trace_id = parent.trace_id or self._ids.generate_trace_id()
        decided = self._sampler.should_sample(found, trace_id, "request", SpanKind.SERVER)
        state = "" if decided.trace_state is None else decided.trace_state.to_header()
        span_id = f"{parent.span_id:016x}" if parent.is_valid else ""
        drawn = parent.trace_flags & _RANDOM if parent.is_valid else _RANDOM * getattr(self._ids, _ASKS_RANDOM, bool)()
        return context.SpanContext(f"{trace_id:032x}", span_id), state, drawn | decided.decision.is_sampled()

    def offer(self, span: Span, state: str) -> None:
        """Send a span that has ended, sooner or later. Never blocks."""
        self._queue.on_end(_Ended(span, state))

    def export(self, batch: Sequence[_Ended]) -> SpanExportResult:
        """Send spans now: the SDK calls it in its thread."""
        anchor, about = Process(os.getpid(), self._role, time.time_ns(), time.monotonic_ns()), self._resource
        found = [(as_record(anchor, row_of(each.span)), each.state) for each in batch]
        return self._sender.export([_readable(span, anchor, about, state) for span, state in found])

    def shutdown(self) -> None:
        """Send nothing more: the SDK calls it."""
        self._sender.shutdown()

    def close(self) -> None:
        """Send what is left, for at most some seconds; then it is lost."""
        closing = threading.Thread(target=self._queue.shutdown, daemon=True, name="trims-otlp-end")
        closing.start()
        if self._complaints.are_recent():  # the collector is down: it is not tried again
            self.shutdown()
        closing.join(_FLUSH_S)
        if closing.is_alive():
            _log.warning("spans that were not sent within %g s are lost: the collector does not answer", _FLUSH_S)


class Complaints(logging.Handler):
    """Handler that passes on the SDK's log as at most one line a minute: a collector that is down is one trouble."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._logged_s = -math.inf
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a line on, without its traceback."""
        if not self.are_recent():
            self._logged_s = self._clock()
            _log.warning("traces: %s (logged once a minute)", record.getMessage())

    def are_recent(self) -> bool:
        """Return whether there was one within the last minute."""
        return self._clock() - self._logged_s < _QUIET_S


def export(spans: Iterable[Record], exporter: OTLPSpanExporter | None = None) -> int:
    """Send spans that were read, and return how many were sent.

    Args:
        spans: All on one monotonic clock: times are reckoned from one anchor, so that steps of the clock on the wall
            move no process against another.
        exporter: Exporter; by default one as the environment says.

    Raises:
        DaemonAwayError: The collector does not take them.
    """
    found = list(spans)
    if not found:
        return 0
    sender, anchor = exporter or OTLPSpanExporter(), found[0].process
    try:
        for first in range(0, len(found), _BATCH):
            batch = [
                _readable(each, anchor, _resource(each.process.pid, f"trims-{each.process.role}"))
                for each in found[first : first + _BATCH]
            ]
            if sender.export(batch) is not SpanExportResult.SUCCESS:
                raise DaemonAwayError("the collector took no spans; see OTEL_EXPORTER_OTLP_ENDPOINT")
    finally:
        sender.shutdown()
    return len(found)


@lru_cache(256)
def _resource(pid: int, service: str) -> Resource:
    return Resource.create({SERVICE_NAME: service, "service.version": _VERSION, "process.pid": pid})


def _readable(span: Record, anchor: Process, resource: Resource, state: str = "") -> ReadableSpan:
    """Return a span as the SDK has it: what attributes say of kind, failure and exception becomes fields."""
    known = {key: _value(value) for key, value in span.attributes.items()}
    is_request = not _OF_REQUESTS.isdisjoint(known)
    failure = known.pop(FAILURE, None)
    if failure is None and (not span.is_finished or ("error.type" in known and not is_request)):
        failure = ""
    begin_ns, end_ns = anchor.wall_ns(span.start_ns), anchor.wall_ns(max(span.end_ns, span.start_ns))
    exception = {key: known.pop(key) for key in list(known) if key.startswith("exception.")}
    known |= {"trims.level": span.level.name.lower(), "thread.id": span.thread}
    if not span.is_finished:
        known["trims.unfinished"] = True
    ids = int(span.trace_id, 16)
    states = TraceState.from_header([state]) if state else None
    parent = SpanContext(ids, int(span.parent_id, 16), is_request, _SAMPLED, states) if span.parent_id else None
    return ReadableSpan(
        span.name,
        SpanContext(ids, int(span.span_id, 16), is_remote=False, trace_flags=_SAMPLED, trace_state=states),
        parent,
        resource,
        BoundedAttributes(_LIMITS.max_span_attributes, known, max_value_len=_LIMITS.max_span_attribute_length),
        events=[Event("exception", exception, timestamp=end_ns)] if exception else (),
        kind=SpanKind.SERVER if is_request else SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET) if failure is None else Status(StatusCode.ERROR, str(failure) or None),
        start_time=begin_ns,
        end_time=end_ns,
        instrumentation_scope=InstrumentationScope(f"trims-{span.process.role}", _VERSION),
    )


def _value(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)
