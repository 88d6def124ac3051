"""Connections of clients that stop in the middle of a request, never end it, or do not read their answer, are closed.

uvicorn closes a connection that is idle between two requests. It waits without end for the first byte of a connection,
for the rest of a request's head, and for the rest of its body: each holds a descriptor of the endpoint. It keeps a
head and a body's trailers in memory, however long they are. It reads what is left of a body after the answer, such as
413, for as long as it comes. It loses the body of a request that offers another protocol. It takes connections until
no descriptor is left for predictors. And it drops a request whose client has closed its sending side.

What uvicorn takes and RFC 9112 does not, such as two hosts, is refused as soon as the head is read (`heads`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import sys
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trims_predictors.endpoint.http.heads import MOST_HEAD_BYTES, TOO_LARGE, RefusedHeadError, check_head
from trims_predictors.endpoint.status import RETRY_AFTER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_log = logging.getLogger(__name__)
#: Seconds for the whole head of a request, from its first byte or from the beginning of its connection.
HEAD_S = 30.0
#: Seconds within which more of a body has to come.
SILENCE_S = 30.0
#: Seconds within which a client has to read some of an answer that waits for it: a stream holds a predictor.
READER_S = 30.0
#: Seconds for what is left of a body once the request is answered: most clients send all before they read.
DRAIN_S = 10.0
#: Seconds before the next look at a connection that cannot be closed now.
_AGAIN_S = 1.0
#: Seconds until the looks whether a client that has closed its sending side still reads. A client that has closed all
#: looks the same until something is written to it, and its request would be answered in vain.
PROBES_S = (0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
#: An answer before the answer, which clients of HTTP/1.1 skip (RFC 9110, 15.2): it asks for nothing new.
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Bytes of a head that are parsed before its length is checked again.
_SLICE_BYTES = 16 << 10
_ANSWER = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%s\r\n%s"
#: Descriptors for all but connections: listeners, logs, the daemon's doors, JSON processes, templates; and for each
#: predictor, such as its socket, arenas and output.
_OWN_DESCRIPTORS, _A_PREDICTOR = 64, 8
#: Headers that offer another protocol, and their names in `connection`.
_OFFER = (b"upgrade", b"http2-settings")
#: Connections that gRPC's setting can state, at most.
_MOST_OF_GRPC = (1 << 31) - 1
#: Seconds between two warnings that connections are refused.
_WARN_AGAIN_S = 60.0


def most_connections(predictors: int) -> int:
    """Return how many connections leave enough descriptors for the work of the endpoint.

    Args:
        predictors: Processes that may run at once.
    """
    most: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(most - _OWN_DESCRIPTORS - _A_PREDICTOR * predictors, most // 4, 1)


def shares(most: int, *, grpc: bool) -> tuple[int, int]:
    """Share connections between HTTP and gRPC. gRPC gets a quarter, since a client needs only one for all its requests.

    Args:
        grpc: Whether gRPC is served at all.
    """
    of_grpc = max(1, min(most // 4, _MOST_OF_GRPC)) if grpc else 0
    return max(1, most - of_grpc), of_grpc


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP as uvicorn has it, with an end of its patience and of what it keeps."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    #: Seconds on the event loop's clock at which bytes came last; None if none came yet.
    _heard_s: float | None = None
    #: Bytes that came since the last byte of a body or the end of a message.
    _head_bytes = 0
    #: Bytes of a body that came after the answer; None while no such body comes.
    _drained_bytes: int | None = None
    #: Whether the connection ends with the body that comes.
    _ends = False
    #: Whether something that is not HTTP came after a request, which is answered nevertheless.
    _broken = False
    #: Whether the head that was just read offers another protocol.
    _offers = False
    #: Bytes of the fields of the head and the trailers, as they are usually written.
    _field_bytes = 0
    #: Reason why the head is refused; None while it is not.
    _refusal: RefusedHeadError | None = None
    #: Looks for a client that has closed its sending side, once it has.
    _probe: asyncio.TimerHandle | None = None
    #: Looks whether the client reads, while an answer waits for it.
    _reader: asyncio.TimerHandle | None = None
    #: Connections at once; more are refused. And bytes of a body that are read after the answer.
    most_connections = sys.maxsize
    most_drained_bytes = 1 << 20
    _warned_s = -_WARN_AGAIN_S

    @classmethod
    def within(cls, *, most_connections: int, most_drained_bytes: int) -> type[ImpatientProtocol]:
        """Return this class with other bounds: uvicorn takes a class."""
        bounds = {"most_connections": most_connections, "most_drained_bytes": most_drained_bytes}
        return type(cls.__name__, (cls,), bounds)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head, or refuse one connection too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse_connection()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        if self._probe is not None:
            self._probe.cancel()
        self._stop_reader()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read, for as long as it reads some of what waits."""
        super().pause_writing()
        self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Go on writing."""
        self._stop_reader()
        super().resume_writing()

    def _await_reader(self, waiting_bytes: int) -> None:
        self._stop_reader()
        self._reader = self.loop.call_later(READER_S, self._look_at_reader, waiting_bytes)

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _look_at_reader(self, before_bytes: int) -> None:
        """Close the connection, which ends its request, if nothing was read since the last look."""
        waiting_bytes = self.transport.get_write_buffer_size()
        if waiting_bytes < before_bytes:
            self._await_reader(waiting_bytes)
        else:
            _log.info("a connection is closed: its client has read nothing of its answer for %g s", READER_S)
            self.transport.abort()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Let a client that sends no more have its answers; returns whether the connection stays open for that."""
        cycle: RequestResponseCycle | None = self.cycle
        if self.transport.is_closing() or not self._in_head or cycle is None or cycle.response_complete:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False  # TLS ends both directions at once
        self._broken = True  # nothing can follow
        self._stop()
        cycle.keep_alive = False  # of the last request: those before it are answered first
        if self.scope["http_version"] == "1.1":
            self._probe_after(PROBES_S)
        return True

    def _probe_after(self, delays_s: tuple[float, ...]) -> None:
        """Write to the client after the first delay unless its answer has begun, and again after each of the others.

        A socket that was closed answers what is written with a reset, which ends the connection and its request.
        """
        if not delays_s:
            return

        def probe() -> None:
            if self._probe_may_go():
                self.transport.write(_PROBE)
                self._probe_after(delays_s[1:])

        self._probe = self.loop.call_later(delays_s[0], probe)

    def _probe_may_go(self) -> bool:
        """Return whether no answer has begun: between the parts of one, nothing else may be written."""
        cycle: RequestResponseCycle = self.cycle
        return not self.transport.is_closing() and not self.pipeline and not cycle.response_started

    def data_received(self, data: bytes) -> None:
        """Note that the client goes on, and refuse more of a head, or after an answer, than it may send."""
        if self._broken:
            return
        self._heard_s = self.loop.time()
        if self._drained_bytes is not None:
            self._drained_bytes += len(data)
            if self._drained_bytes > self.most_drained_bytes:
                self.transport.close()
        at = 0
        while at < len(data) and not self.transport.is_closing() and not self._broken:  # it closes when it is refused
            part = data[at : at + _SLICE_BYTES] if self._in_head else data[at:]
            at += len(part)
            self._head_bytes += len(part)
            self._parse(part)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(*TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        """Parse data as uvicorn does, but take the bytes after an offer of another protocol as the rest of the request.

        Java's client offers HTTP/2 in each of its first requests. A server may ignore that (RFC 9110, 7.8). The parser
        takes what follows for the other protocol, so the head is read once more without the offer.
        """
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError:
                self.send_400_response("")
            except httptools.HttpParserUpgrade as error:
                if self._offers:
                    data = self._head_without_offer() + data[error.args[0] :]
                    self._offers = False
                    self.parser = httptools.HttpRequestParser(self)
                    with contextlib.suppress(AttributeError):  # httptools before 0.6.3
                        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                    continue
            return

    def _head_without_offer(self) -> bytes:
        """Return the request's header block without the headers that offer another protocol (`Upgrade`)."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(each for each in value.split(b",") if each.strip().lower() not in _OFFER)  # noqa: PLW2901
            if name not in _OFFER:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the form of all errors. If a request before it is not answered yet, it is."""
        del msg
        refusal, self._refusal = self._refusal, None
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_head and cycle is not None and not cycle.response_complete:
            self._broken = True
            self._stop()
            cycle.keep_alive = False
        elif refusal is None:
            self._refuse(b"400 Bad Request", "the request is not HTTP/1.1")
        else:
            self._refuse(refusal.status, str(refusal))

    def on_message_begin(self) -> None:
        """Wait for the rest of a head."""
        super().on_message_begin()
        self._head_bytes = self._field_bytes = 0
        self._await_head()

    def on_body(self, body: bytes) -> None:
        """Note that a part of the body came."""
        self._head_bytes = 0
        super().on_body(body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the field unless it is a trailer, which nothing reads. Raises RefusedHeadError for too many bytes."""
        self._field_bytes += len(name) + len(value) + len(b": \r\n")
        if self._field_bytes > MOST_HEAD_BYTES:
            self._refusal = RefusedHeadError(*TOO_LARGE)
            raise self._refusal
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Wait for a body. Raises RefusedHeadError for a head that HTTP does not allow, or that is too large."""
        try:
            host = check_head(self.url, self.headers, self.parser.get_http_version(), self._field_bytes)
        except RefusedHeadError as error:
            self._refusal = error
            raise
        if host is not None:
            self.headers.append((b"host", host))
        self._offers = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._offers:
            return
        super().on_headers_complete()
        cycle: RequestResponseCycle = self.cycle
        cycle.transport = _Patient(self.transport, self.end)
        if self.scope["http_version"] == "1.0":
            cycle.send = _until_the_end(cycle)  # type: ignore[method-assign, assignment]
        self._in_head = False
        self._wait(SILENCE_S)

    def on_message_complete(self) -> None:
        """The request is there: from now on, the client waits."""
        if self._offers:
            return
        self._stop()
        self._head_bytes, self._in_head = 0, True
        super().on_message_complete()
        if self._drained_bytes is not None:
            self._drained_bytes = None
            self._go_on()

    def on_response_complete(self) -> None:
        """Throw away what is left of the body, for a while: the client may read the answer only after it."""
        super().on_response_complete()
        cycle: RequestResponseCycle = self.cycle
        if not self._in_head and cycle.response_complete and not self.transport.is_closing():
            self._drained_bytes = 0
            self._wait(DRAIN_S)

    def end(self) -> None:
        """The answer is the last one of the connection: close it, once the rest of the request is there."""
        self._ends = True
        if self._in_head:
            self.transport.close()

    def _go_on(self) -> None:
        """Wait for the next request, now that the rest of a body has come, as uvicorn does after an answer."""
        if self._ends:
            self.transport.close()
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _await_head(self) -> None:
        self._in_head = True
        self._wait(HEAD_S)

    def _wait(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._look)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Close the connection if its head is late, or its body silent though it is read."""
        self._timer = None
        if self.transport.is_closing():
            return
        if self._drained_bytes is not None:
            self.transport.close()
            return
        if self._in_head:
            cycle: RequestResponseCycle | None = self.cycle
            again_s = _AGAIN_S if cycle is not None and not cycle.response_complete else 0.0
        else:
            left_s = (self._heard_s or 0.0) + SILENCE_S - self.loop.time()
            again_s = _AGAIN_S if self.flow.read_paused else left_s
        if again_s > 0:  # an answer is not out yet, we do not read, or the client is only slow
            self._wait(again_s)
            return
        self._refuse(b"408 Request Timeout", "the rest of the request did not come in time")

    def _refuse(self, status: bytes, why: str) -> None:
        """Close the connection, with an answer unless another one is under way or nothing was asked."""
        if self._may_answer() and not self.transport.is_closing():
            body = json.dumps({"error": why}, separators=(",", ":")).encode()
            self.transport.write(_ANSWER % (status, len(body), b"", body))
        self.transport.close()

    def _refuse_connection(self) -> None:
        """Answer a client above the limit of connections with 503. It keeps its descriptor for a moment only."""
        why = (
            f"the endpoint has {self.most_connections} connections, and keeps its other descriptors for predictors; "
            "close some, or raise its limit of open files (`ulimit -n`)"
        )
        cls = type(self)
        if self.loop.time() - cls._warned_s >= _WARN_AGAIN_S:
            cls._warned_s = self.loop.time()
            _log.warning("a connection is refused: %s", why)
        body = json.dumps({"error": why}, separators=(",", ":")).encode()
        retry = b"retry-after: %d\r\n" % RETRY_AFTER_S
        self.transport.write(_ANSWER % (b"503 Service Unavailable", len(body), retry, body))
        self.transport.close()

    def _may_answer(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_head:
            return self._heard_s is not None and (cycle is None or cycle.response_complete)
        return cycle is not None and not cycle.response_started


def _until_the_end(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return `send` of a request by HTTP/1.0, which has no chunks: an answer without a length ends its connection."""
    send, unstated = cycle.send, False

    async def send_plainly(message: Any) -> None:
        nonlocal unstated
        if message["type"] == "http.response.start":
            unstated = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unstated:
                cycle.chunked_encoding, cycle.expected_content_length = False, sys.maxsize
        elif unstated and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_plainly


class _Patient(asyncio.Transport):
    """The transport of one answer, which leaves it to the protocol when the connection is closed after it.

    Args:
        end: Called instead of closing it.
    """

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._end = end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio.Transport."""
        self._transport.write(data)

    def is_closing(self) -> bool:
        """See asyncio.Transport."""
        return self._transport.is_closing()

    def close(self) -> None:
        """See asyncio.Transport."""
        self._end()
