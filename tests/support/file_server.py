"""A real HTTP server of files that misbehaves on request: it breaks off, stalls, lies, changes files, redirects."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANGE = re.compile(r"bytes=(\d+)-(\d+)\Z")
_PIECE = 64 << 10


@dataclass
class Served:
    """One file, and how it is served.

    Attributes:
        data: Its bytes.
        etag: Empty for none.
        ranges: False: every answer is the whole file.
        statuses: Answered to the next requests, instead of the file.
        break_after: Bytes after which the next connections are closed, one entry for each answer with a body.
        stall_after: Bytes after which answers wait for `resume`; None for never.
        resume: Ends stalls.
        bytes_per_s: Of one connection; None for no limit.
        total: What `Content-Range` says of the length; None for the truth.
        headers: Sent with each answer.
        redirect: Where each request is sent.
    """

    data: bytes
    etag: str = '"v1"'
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)
    break_after: list[int] = field(default_factory=list)
    stall_after: int | None = None
    resume: threading.Event = field(default_factory=threading.Event)
    bytes_per_s: float | None = None
    total: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    redirect: str = ""


class FileServer:
    """A server.

    Attributes:
        url: Of its root, without a slash at the end.
        port: Its number.
        files: By path, with a slash in front; one with a query is for that query alone.
        sent: Bytes of bodies that were handed to the kernel, by path.
        requests: Method, path and headers of each.
        targets: Path and query of each.
    """

    def __init__(self, port: int = 0) -> None:
        self.files: dict[str, Served] = {}
        self.sent: Counter[str] = Counter()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.targets: list[str] = []
        self.connections: set[socket.socket] = set()
        self.closing = False
        self.lock = threading.Lock()
        self.came = threading.Condition(self.lock)
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = False
        self._server.block_on_close = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def serve(self, path: str, data: bytes, **how: Any) -> Served:
        """Serve a file from now on."""
        served = self.files[path] = Served(data, **how)
        return served

    def wait_for(self, nbytes: int, path: str, seconds: float = 30.0) -> None:
        """Wait until so many bytes of a file were sent."""
        with self.came:
            assert self.came.wait_for(lambda: self.sent[path] >= nbytes, seconds), self.sent

    def close(self) -> None:
        """End the server and all its answers."""
        self._server.shutdown()
        self._thread.join()
        with self.lock:
            self.closing = True
            open_now = list(self.connections)
        for each in open_now:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for served in self.files.values():
            served.resume.set()
            served.bytes_per_s = None
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server_of: FileServer

    def setup(self) -> None:
        super().setup()
        with self.server_of.lock:
            self.server_of.connections.add(self.connection)
            if self.server_of.closing:  # it was accepted before
                self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        with self.server_of.lock:
            self.server_of.connections.discard(self.connection)
        with contextlib.suppress(ConnectionError):
            super().finish()

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _answer(self, *, body: bool) -> None:
        owner, path = self.server_of, self.path.partition("?")[0]
        with owner.lock:
            owner.requests.append((self.command, path, dict(self.headers)))
            owner.targets.append(self.path)
            served = owner.files.get(self.path) or owner.files.get(path)
        if served is None:
            self._plain(404)
        elif served.redirect:
            self._plain(302, {"Location": served.redirect})
        elif served.statuses:
            self._plain(served.statuses.pop(0), served.headers)
        elif self.headers.get("If-Match", served.etag) != served.etag:
            self._plain(412)
        else:
            self._file(path, served, body=body)

    def _plain(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def _file(self, path: str, served: Served, *, body: bool) -> None:
        asked = _RANGE.match(self.headers.get("Range", "")) if served.ranges else None
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, len(served.data))) if asked else (0, len(served.data))
        if begin >= len(served.data):
            self._plain(416, {"Content-Range": f"bytes */{len(served.data)}"})
            return
        self.send_response(206 if asked else 200)
        total = len(served.data) if served.total is None else served.total
        said = {"Content-Length": str(end - begin)}
        if asked:
            said["Content-Range"] = f"bytes {begin}-{end - 1}/{total}"
        if served.etag:
            said["ETag"] = served.etag
        for name, value in {**said, **served.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self._send(path, served, begin, end)

    def _send(self, path: str, served: Served, begin: int, end: int) -> None:
        owner = self.server_of
        most = served.break_after.pop(0) if served.break_after and end - begin > 1 else None
        done = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            while begin + done < end:
                if most is not None and done >= most:
                    self.close_connection = True
                    return
                if served.stall_after is not None and end - begin > 1 and done >= served.stall_after:
                    served.resume.wait(30)
                piece = served.data[begin + done : min(begin + done + _PIECE, end)]
                if most is not None:
                    piece = piece[: max(1, most - done)]
                self.wfile.write(piece)
                done += len(piece)
                with owner.came:
                    owner.sent[path] += len(piece)
                    owner.came.notify_all()
                if served.bytes_per_s:
                    time.sleep(len(piece) / served.bytes_per_s)
            return
        self.close_connection = True


@contextlib.contextmanager
def file_server(port: int = 0) -> Iterator[FileServer]:
    """Give a server for a block; on a port that another one had, if that is named."""
    server = FileServer(port)
    try:
        yield server
    finally:
        server.close()
