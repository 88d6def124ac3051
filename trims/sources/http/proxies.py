"""Proxies that the environment names, with their users and passwords, which no error shows.

A proxy is spoken to in plain text (`http://`) or over TLS (`https://`). Through the second kind a server with TLS is
reached by TLS inside TLS, for which the standard library has no socket.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from trims.core.errors import ConfigError, SourceRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import ReadableBuffer, WriteableBuffer

_PORTS = {"http": 80, "https": 443}
_BLOCK_BYTES = 256 << 10
#: Status of a proxy that asks for a user and a password.
ASKS = 407


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy.

    Attributes:
        secure: Whether it is spoken to over TLS.
        headers: The user and the password, for the proxy alone; a secret.
    """

    host: str
    port: int
    secure: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> Proxy:
        """Take apart what a variable such as `https_proxy` holds. Raises ConfigError, which does not show it."""
        try:
            parts = urlsplit(text if "//" in text else f"http://{text}")
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            parts, port = urlsplit(""), 0
        if not port or not parts.hostname or parts.scheme not in _PORTS:
            raise ConfigError(
                "the proxy of the environment (https_proxy, http_proxy, all_proxy) is no http://HOST:PORT or "
                "https://HOST:PORT, perhaps with USER:PASSWORD@ before the host; other kinds are not supported"
            )
        if parts.username is None:
            return cls(parts.hostname, port, parts.scheme == "https")
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = base64.b64encode(user.encode()).decode()
        headers = {"Proxy-Authorization": f"Basic {credentials}"}
        return cls(parts.hostname, port, parts.scheme == "https", headers)


def proxy_for(target: SplitResult) -> Proxy | None:
    """Return the proxy that the environment names for a server; None without. Raises ConfigError."""
    proxies = urllib.request.getproxies()
    named = proxies.get(target.scheme) or proxies.get("all")
    if not named or urllib.request.proxy_bypass(target.netloc.rpartition("@")[2]):
        return None
    return Proxy.parse(named)


def refusal(host: str) -> SourceRefusedError:
    """Return the error for a proxy that wants other credentials than it got."""
    return SourceRefusedError(
        f"{host}: the proxy on the way answers {ASKS}: it asks for a user and a password, or refuses those it got; "
        "name them in https_proxy and http_proxy, as http://USER:PASSWORD@HOST:PORT, with letters "
        "such as @ escaped (%40)"
    )


class TunnelledConnection(http.client.HTTPSConnection):
    """A connection with TLS through a proxy that is spoken to over TLS.

    Args:
        timeout: Seconds without a byte after which the connection counts as stalled.
    """

    def __init__(self, proxy: Proxy, *, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(proxy.host, proxy.port, timeout=timeout, context=context)
        self._tls = context
        self._create_connection = self._connected

    def connect(self) -> None:
        """Connect to the proxy, and through it to the server. Raises OSError."""
        super(http.client.HTTPSConnection, self).connect()
        assert isinstance(self.sock, ssl.SSLSocket)
        host: str = self._tunnel_host  # type: ignore[attr-defined]
        try:
            self.sock = TlsInTls(self.sock, self._tls, host)
        except BaseException:
            self.close()
            raise

    def _connected(self, address: tuple[str, int], timeout: float, *_: object) -> ssl.SSLSocket:
        made = socket.create_connection(address, timeout)
        try:
            return self._tls.wrap_socket(made, server_hostname=address[0])
        except BaseException:
            made.close()
            raise


class TlsInTls:
    """A socket with TLS inside another one, as far as the standard library's client uses a socket.

    Args:
        outer: Connected; closed with this one.
        host: Name that the certificate must have.

    Raises OSError if the two ends find no common ground.
    """

    def __init__(self, outer: ssl.SSLSocket, context: ssl.SSLContext, host: str) -> None:
        self._outer = outer
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, server_hostname=host)
        self._readers, self._closed = 0, False
        while not self._moved(self._tls.do_handshake):
            self._receive()

    def sendall(self, data: ReadableBuffer) -> None:
        """See `socket.sendall`."""
        with memoryview(data) as view, view.cast("B") as left:
            done = 0
            while done < len(left):
                with left[done:] as rest:
                    done += self._tls.write(rest)
                self._send()

    def recv_into(self, room: memoryview) -> int:
        """See `socket.recv_into`."""
        got = 0

        def read() -> None:
            nonlocal got
            got = self._tls.read(len(room), room)  # type: ignore[assignment]

        while not self._moved(read):
            self._receive()
        return got

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a reader; the socket stays open as long as the reader."""
        assert mode == "rb", "the standard library's client asks for nothing else"
        self._readers += 1
        return io.BufferedReader(_Reader(self))

    def reader_closed(self) -> None:
        """Close, if that was asked for and no other reader is left."""
        self._readers -= 1
        if self._closed and not self._readers:
            self._outer.close()

    def shutdown(self, how: int) -> None:
        """See `socket.shutdown`."""
        self._outer.shutdown(how)

    def close(self) -> None:
        """Close, as soon as no reader is left. Idempotent."""
        self._closed = True
        if not self._readers:
            self._outer.close()

    def _moved(self, step: Callable[[], object]) -> bool:
        """Do a step of TLS, and send what it leads to. Return False if bytes of the other end are needed first."""
        try:
            step()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:  # the other end has closed its half in order
            return True
        finally:
            self._send()
        return True

    def _send(self) -> None:
        if data := self._going.read():
            self._outer.sendall(data)

    def _receive(self) -> None:
        if data := self._outer.recv(_BLOCK_BYTES):
            self._coming.write(data)
        else:
            self._coming.write_eof()


class _Reader(io.RawIOBase):
    """Bytes of a socket as a file."""

    def __init__(self, of: TlsInTls) -> None:
        self._of = of

    def readable(self) -> bool:
        return True

    def readinto(self, room: WriteableBuffer) -> int:
        with memoryview(room) as view, view.cast("B") as whole:
            return self._of.recv_into(whole)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._of.reader_closed()
