"""A collector of OpenTelemetry: takes what is sent by OTLP over HTTP, and gives the spans."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from looking import wait_until


@dataclass(frozen=True)
class Span:
    """One span, as it was sent."""

    name: str
    trace: str
    own: str
    parent: str
    kind: int
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    status: int
    events: tuple[dict[str, Any], ...]
    state: str


class Collector:
    """Listens until it is closed."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def take(self, body: bytes) -> None:
        """Decode one export."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services.add(_values(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += [_span(each) for each in scope.spans]

    def trace(self, trace: str, name: str) -> dict[str, Span]:
        """The spans of a trace by their names, once that of this name has come: it ends last."""

        def found() -> dict[str, Span]:
            return {span.name: span for span in self.spans if span.trace == trace}

        wait_until(lambda: name in found(), f"the span {name} was sent; there are {[s.name for s in self.spans]}")
        return found()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *given: object) -> None:
            """Nothing."""

    return Handler


def _span(each: Any) -> Span:
    return Span(
        each.name, each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex(), each.kind,
        each.start_time_unix_nano, each.end_time_unix_nano, _values(each.attributes), each.status.code,
        tuple({"name": event.name, **_values(event.attributes)} for event in each.events), each.trace_state,
    )  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
