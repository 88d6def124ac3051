"""Load of many connections: it counts right answers, and reports all others. Against a server of the library's."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from trims_bench.child import call
from trims_bench.http_load import ask
from trims_bench.others.serving import free_port
from trims_bench.repository import ClientsMissingError, clients_python, packages_path
from trims_bench.runs import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients
RIGHT = {"y": [[1.0, 2.0]]}


@contextmanager
def serving(status: int, content: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing on standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/predict"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def told_of(url: str, *, speaks_v2: bool = False) -> dict[str, Any]:
    try:
        python = clients_python()
    except ClientsMissingError as missing:
        pytest.skip(f"no clients: {missing}")
    given = {"url": url, "body": "{}", "connections": 2, "seconds": 0.2, "expected": [1.0, 2.0], "speaks_v2": speaks_v2}
    env = {**environment(), "PYTHONPATH": packages_path()}
    found: dict[str, Any] = call(ask, given, python=python, env=env)
    return found


def test_right_answers_are_counted() -> None:
    with serving(200, json.dumps(RIGHT).encode()) as url:
        told = told_of(url)
    assert told["answered"] > 0
    assert told["per_second"] == round(told["answered"] / 0.2)
    assert (told["failed"], told["why"]) == (0, "")


def test_right_answers_of_the_inference_protocol_are_counted() -> None:
    with serving(200, json.dumps({"outputs": [{"name": "y", "data": [1.0, 2.0]}]}).encode()) as url:
        told = told_of(url, speaks_v2=True)
    assert told["answered"] > 0
    assert told["failed"] == 0


@pytest.mark.parametrize(
    ("status", "content", "why"),
    [
        (503, b"{}", "503 b'{}'"),
        (200, b'{"y": [[1.0, 2.1]]}', "the answer is [1.0, 2.1], not [1.0, 2.0]"),
        (200, b'{"y": [[1.0]]}', "the answer is [1.0], not"),
        (200, b"fine", "the answer b'fine' has no numbers"),
        (200, b'{"x": 1}', "has no numbers: KeyError('y')"),
    ],
)
def test_an_answer_that_is_not_right_is_a_failure_with_its_words(status: int, content: bytes, why: str) -> None:
    with serving(status, content) as url:
        told = told_of(url)
    assert told["answered"] == 0
    assert told["failed"] > 0
    assert why in told["why"]


def test_a_server_that_does_not_listen_is_a_failure_with_its_words() -> None:
    told = told_of(f"http://127.0.0.1:{free_port()}/predict")
    assert told["answered"] == 0
    assert "ClientConnectorError" in told["why"]
