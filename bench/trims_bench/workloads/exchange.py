"""Connections of the generator: one request at a time each, over sockets that never block."""

from __future__ import annotations

import errno
import re
import socket
import ssl
import time
from typing import TYPE_CHECKING, Protocol

import httptools

from trims_bench.workloads.records import CLOSED, COLD, NEVER, NO_CONNECTION, NO_HTTP, REFUSED, UNKNOWN, WARM

if TYPE_CHECKING:
    from trims_bench.workloads.order import Server

_RECEIVE_BYTES = 256 << 10
#: Bytes at the beginning of an answer in which it says whether it was cold.
_HEAD_BYTES = 1024
_COLD = re.compile(rb'"cold"\s*:\s*(true|false)')
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
clock = time.monotonic_ns


class Request:
    """One request on its way.

    Attributes:
        model: Index of its model.
        intended: When it was to be sent.
        sent: When its first bytes were given to the kernel.
        first: When the first bytes of its answer came.
        over: Whether its outcome was recorded.
    """

    __slots__ = ("connection", "first", "intended", "model", "number", "over", "sent")

    def __init__(self, number: int, model: int, intended: int) -> None:
        self.number = number
        self.model = model
        self.intended = intended
        self.sent = self.first = NEVER
        self.over = False
        #: Where it is; None if it waits for one, or is over.
        self.connection: Connection | None = None


class Owner(Protocol):
    """Generator, as its connections see it."""

    def want(self, connection: Connection, *, writing: bool) -> None:
        """Have the connection looked at when it can be read, or also written."""

    def over(self, connection: Connection, request: Request | None, status: int, cold: int, *, usable: bool) -> None:
        """Take the outcome of a request, if there was one, and the connection: `usable` for another one, or broken."""


class Connection:
    """One connection. Raises OSError if it cannot be made at once; later failures come as outcomes.

    Args:
        owner: Takes outcomes.
    """

    def __init__(self, server: Server, tls: ssl.SSLContext | None, owner: Owner) -> None:
        self._owner = owner
        self._left = memoryview(b"")
        self._request: Request | None = None
        self._shaking = tls is not None
        self._writing = False
        self.sock = socket.socket(server.family, socket.SOCK_STREAM)
        try:
            self.sock.setblocking(False)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            failed = self.sock.connect_ex((server.host, server.port))
            if failed not in (0, errno.EINPROGRESS):
                raise OSError(failed, errno.errorcode.get(failed, ""))
            self._connecting = failed != 0
            if tls is not None:
                name = server.name or None
                self.sock = tls.wrap_socket(self.sock, server_hostname=name, do_handshake_on_connect=False)
        except BaseException:
            self.sock.close()
            raise
        self.fd = self.sock.fileno()
        self._parser = httptools.HttpResponseParser(self)
        self._begin_answer()

    def _begin_answer(self) -> None:
        self._head = b""
        self._status = 0
        self._keeps = False

    # -- sending ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Connect ahead of a request; the owner gets the connection when it is usable."""
        self._want(writing=True)

    def send(self, request: Request, data: bytes) -> None:
        """Send a request; the connection has none."""
        self._request, request.connection = request, self
        self._left = memoryview(data)
        self._write()

    def _write(self) -> None:
        """Give the kernel what it takes now; the rest follows when there is room."""
        try:
            if self._shaking and not self._shake():
                return
            request = self._request
            while self._left:
                taken = self.sock.send(self._left)
                self._left = self._left[taken:]
                if request is not None and request.sent == NEVER:
                    request.sent = clock()
                    self._connecting = False
        except _AGAIN:
            self._want(writing=True)
            return
        except OSError as error:
            self._fail(error)
            return
        self._want(writing=False)
        if request is None:
            self._owner.over(self, None, 0, UNKNOWN, usable=True)

    def _shake(self) -> bool:
        """Go on with the handshake of TLS; True once it is done."""
        assert isinstance(self.sock, ssl.SSLSocket), "it shakes hands"
        if self._connecting:  # which the handshake would take for a failure
            self._want(writing=True)
            return False
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._want(writing=False)
            return False
        self._shaking = False
        return True

    def _want(self, *, writing: bool) -> None:
        if writing != self._writing:
            self._writing = writing
            self._owner.want(self, writing=writing)

    # -- events ----------------------------------------------------------------------------------------------------

    def writable(self) -> None:
        """Go on when the kernel has room, or the connection was made or refused."""
        if self._connecting:
            failed = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                self._fail(OSError(failed, errno.errorcode.get(failed, "")))
                return
            self._connecting = False
        self._write()

    def readable(self) -> None:
        """Take what has come."""
        try:
            if self._shaking:
                self._write()
                return
            while True:
                data = self.sock.recv(_RECEIVE_BYTES)
                if not data:
                    self._end(CLOSED)
                    return
                if not self._take(data):
                    return
                if len(data) < _RECEIVE_BYTES and not isinstance(self.sock, ssl.SSLSocket):
                    return  # the kernel has no more, and saves being asked
        except _AGAIN:
            return
        except OSError as error:
            self._fail(error)

    def _take(self, data: bytes) -> bool:
        """Parse a part of an answer; False once the connection is over, or the answer complete."""
        request = self._request
        if request is None:
            self._end(NO_HTTP)  # nothing was asked
            return False
        if request.first == NEVER:
            request.first = clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(NO_HTTP)
            return False
        if not self._status:
            return True
        self._end(self._status, usable=self._keeps and not self._left)
        return False

    def _fail(self, error: OSError) -> None:
        connecting = self._connecting or self._shaking
        refused = error.errno == errno.ECONNREFUSED
        self._end(REFUSED if refused else NO_CONNECTION if connecting else CLOSED)

    def _end(self, status: int, *, usable: bool = False) -> None:
        """Hand over the outcome."""
        request, self._request = self._request, None
        if request is not None:
            request.connection = None
        found = _COLD.search(self._head) if usable or status > 0 else None
        cold = UNKNOWN if found is None else COLD if found[1] == b"true" else WARM
        if usable:
            self._begin_answer()
        self._owner.over(self, request, status, cold, usable=usable)

    def give_up(self) -> None:
        """Forget its request, whose outcome is recorded elsewhere."""
        if self._request is not None:
            self._request.connection = None
            self._request = None

    def close(self) -> None:
        """Hang up. The parser, which knows this connection, is let go: no garbage is collected here."""
        self.sock.close()
        del self._parser

    # -- callbacks of the parser -----------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """Keep the beginning of an answer."""
        if len(self._head) < _HEAD_BYTES:
            self._head += body[:_HEAD_BYTES]

    def on_message_complete(self) -> None:
        """Note the end of an answer. One before the answer (1xx) is none."""
        status = self._parser.get_status_code()
        if status >= 200:
            self._status = status
            self._keeps = self._parser.should_keep_alive()
