"""Connections of clients that stop in the middle of a request, or whose head never ends, are closed.

uvicorn closes a connection that is idle between two requests. It waits without end for the first byte of a connection,
for the rest of a request's head, and for the rest of its body: each holds a descriptor of the endpoint. And it keeps a
head and a body's trailers in memory, however long they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

#: Seconds for the whole head of a request, from its first byte or from the beginning of its connection.
HEAD_S = 30.0
#: Seconds within which more of a body has to come.
SILENCE_S = 30.0
#: Before the next look at a connection that cannot be closed now.
_AGAIN_S = 1.0
#: Bytes of a head, and of what follows a body or stands between its chunks. Of a head up to `_SLICE_BYTES` more may
#: pass, of the others what comes at once.
MOST_HEAD_BYTES = 64 << 10
#: Of a head, parsed before the next look at how long it is.
_SLICE_BYTES = 16 << 10
_ANSWER = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP as uvicorn has it, with an end of its patience and of what it keeps."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    #: When bytes came last, as the event loop counts seconds; None if none came yet.
    _heard_s: float | None = None
    #: That came since the last byte of a body or the end of a message.
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note that the client goes on, and refuse more of a head than it may have."""
        self._heard_s = self.loop.time()
        at = 0
        while at < len(data) and not self.transport.is_closing():  # it closes when it is refused
            part = data[at : at + _SLICE_BYTES] if self._in_head else data[at:]
            at += len(part)
            self._head_bytes += len(part)
            super().data_received(part)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large", "the head of the request is larger than 64 KiB")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the form of all errors."""
        del msg
        self._refuse(b"400 Bad Request", "the request is not HTTP/1.1")

    def on_message_begin(self) -> None:
        """Wait for the rest of a head."""
        super().on_message_begin()
        self._head_bytes = 0
        self._await_head()

    def on_body(self, body: bytes) -> None:
        """Note that a part of the body came."""
        self._head_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Wait for a body."""
        super().on_headers_complete()
        self._in_head = False
        self._wait(SILENCE_S)

    def on_message_complete(self) -> None:
        """The request is there: from now on, the client waits."""
        self._stop()
        self._head_bytes, self._in_head = 0, True
        super().on_message_complete()

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
            told = json.dumps({"error": why}, separators=(",", ":")).encode()
            self.transport.write(_ANSWER % (status, len(told), told))
        self.transport.close()

    def _may_answer(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_head:
            return self._heard_s is not None and (cycle is None or cycle.response_complete)
        return cycle is not None and not cycle.response_started
