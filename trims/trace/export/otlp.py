"""Export of traces to a collector by OpenTelemetry's SDK (OTLP over HTTP). Needs `trims[otel]`.

The environment says where, as OpenTelemetry's specification has it: `OTEL_EXPORTER_OTLP_ENDPOINT` and others.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from trims.core.errors import DaemonAwayError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.trace.reader import Process, Record

#: Spans in one request to the collector.
_BATCH = 512
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def export(spans: Iterable[Record], exporter: OTLPSpanExporter | None = None) -> int:
    """Send spans, and return how many were sent.

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
    resources: dict[Process, Resource] = {}
    try:
        for first in range(0, len(found), _BATCH):
            batch = [_readable(each, anchor, resources) for each in found[first : first + _BATCH]]
            if sender.export(batch) is not SpanExportResult.SUCCESS:
                raise DaemonAwayError("the collector took no spans; see OTEL_EXPORTER_OTLP_ENDPOINT")
    finally:
        sender.shutdown()
    return len(found)


def _readable(span: Record, anchor: Process, resources: dict[Process, Resource]) -> ReadableSpan:
    process = span.process
    if process not in resources:
        resources[process] = Resource.create(
            {
                "service.name": f"trims-{process.role}", "service.version": version("trims"),
                "process.pid": process.pid,
            }
        )  # fmt: skip
    trace_id = int(span.trace_id, 16)
    parent = SpanContext(trace_id, int(span.parent_id, 16), True, _SAMPLED) if span.parent_id else None
    attributes = {key: _value(value) for key, value in span.attributes.items()}
    attributes |= {"trims.level": span.level.name.lower(), "thread.id": span.thread}
    failed = "error.type" in span.attributes or not span.is_finished
    if not span.is_finished:
        attributes["trims.unfinished"] = True
    return ReadableSpan(
        span.name,
        SpanContext(trace_id, int(span.span_id, 16), False, _SAMPLED),
        parent,
        resources[process],
        attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR) if failed else Status(StatusCode.UNSET),
        start_time=anchor.wall_ns(span.start_ns),
        end_time=anchor.wall_ns(max(span.end_ns, span.start_ns)),
    )


def _value(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)
