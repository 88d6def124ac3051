"""Connections of clients that stop in the middle of a request are closed: each holds a descriptor of the endpoint.

uvicorn closes a connection that is idle between two requests. It waits without end for the first byte of a connection,
for the rest of a request's head, and for the rest of its body.
"""

from __future__ import annotations

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
_TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s"
)
_TOLD = b'{"error":"the rest of the request did not come in time"}'


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP as uvicorn has it, with an end of its patience."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    #: When bytes came last, as the event loop counts seconds; None if none came yet.
    _heard_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note that the client goes on."""
        self._heard_s = self.loop.time()
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Wait for the rest of a head."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Wait for a body."""
        super().on_headers_complete()
        self._in_head = False
        self._wait(SILENCE_S)

    def on_message_complete(self) -> None:
        """The request is there: from now on, the client waits."""
        self._stop()
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
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_head:
            again_s = _AGAIN_S if cycle is not None and not cycle.response_complete else 0.0
            may_answer = self._heard_s is not None
        else:
            left_s = (self._heard_s or 0.0) + SILENCE_S - self.loop.time()
            again_s = _AGAIN_S if self.flow.read_paused else left_s
            may_answer = cycle is not None and not cycle.response_started
        if again_s > 0:  # an answer is not out yet, we do not read, or the client is only slow
            self._wait(again_s)
            return
        if may_answer:
            self.transport.write(_TOO_LATE % (len(_TOLD), _TOLD))
        self.transport.close()
