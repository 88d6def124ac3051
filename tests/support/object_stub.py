"""A small server for objects of any cloud: it answers as it is told to, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.settings import SourceSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping

    from trims.sources.base import Opened, RemoteFile

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Stub:
    """What the server has, what it wants, and what it was asked.

    Attributes:
        objects: Bytes by path.
        headers: Headers of an object's answers, by path.
        needs: Parameters that a request for an object must carry; without, the answer is 403.
        answers: Answers (status, headers, body) to the next requests, whatever they are.
        part_answer: Answer to each part of an upload.
        on_part: Called with each part of an upload, before its answer.
        listing: Answer to every request for a listing.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    part_answer: tuple[int, dict[str, str], bytes] = (200, {"ETag": '"part"'}, b"")
    on_part: Callable[[], None] = lambda: None
    listing: bytes = b""
    asked: list[Asked] = field(default_factory=list)

    @property
    def seen(self) -> list[str]:
        """Method and path of each request."""
        return [f"{each.method} {each.path}" for each in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def _serve(self) -> None:
        target = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(target.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sent = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, unquote(target.path), query, sent, body)
        self.stub.asked.append(asked)
        self._answer(*self._answer_to(asked))

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _serve  # noqa: N815 (names of the library)

    def _answer_to(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        stub = self.stub
        if stub.answers:
            return stub.answers.pop(0)
        if {"list-type", "comp"} & asked.query.keys():
            return 200, {"Content-Type": "application/xml"}, stub.listing
        if {"uploads", "uploadId"} & asked.query.keys():
            return self._answer_upload(asked)
        if asked.method == "PUT":
            stub.objects[asked.path] = asked.body
            return 200, {"ETag": '"put"', **stub.headers.get(asked.path, {})}, b""
        if asked.method == "DELETE":
            stub.objects.pop(asked.path, None)
            return 204, {}, b""
        if not stub.needs <= asked.query.keys():
            return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
        if asked.path not in stub.objects:
            return 404, {}, b""
        data, headers = stub.objects[asked.path], stub.headers.get(asked.path, {})
        found = _RANGE.match(asked.headers.get("range", ""))
        if found is None:
            return 200, headers, data
        begin, end = int(found[1]), int(found[2]) + 1
        return 206, {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, data[begin:end]

    def _answer_upload(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        """Answer a request for an upload in parts, as S3 does; its parts are kept nowhere."""
        if asked.method == "POST" and "uploads" in asked.query:
            return 200, {}, b"<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"
        if asked.method == "PUT":
            self.stub.on_part()
            return self.stub.part_answer
        return 204, {}, b""

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    """A server whose connections end with it, so that no thread of theirs is left."""

    daemon_threads = False

    def __init__(self, stub: Stub) -> None:
        super().__init__(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": stub}))
        self._lock = threading.Lock()
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(2)


@contextlib.contextmanager
def object_stub(tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """Give a server for a block; it speaks TLS if it gets a context for that."""
    stub = Stub()
    with _Server(stub) as server:
        stub.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield stub
        finally:
            server.shutdown()
            serving.join()
            server.hang_up()


def settings(**environment: str) -> SourceSettings:
    """Return settings with these variables, and a client that may reach public hosts only."""
    return SourceSettings(Http(HostPolicy(), stall_s=20), {"HOME": "/nonexistent", **environment})


def read_whole(opened: Opened, file: RemoteFile, part_bytes: int = 1 << 20) -> bytes:
    """Return the bytes of a file, filled in parts of a size."""
    room = bytearray(file.nbytes)
    with memoryview(room) as view:
        parts = [(offset, view[offset : offset + part_bytes]) for offset in range(0, file.nbytes, part_bytes)]
        for _ in opened.fill(file, parts):
            pass
        for _, part in parts:
            part.release()
    return bytes(room)
