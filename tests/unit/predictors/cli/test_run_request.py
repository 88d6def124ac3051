"""One request through an endpoint's HTTP: what is sent, and how each kind of trouble is reported."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.cli.run_request import Away, HttpEndpoint
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import (
    BusyError,
    CallerError,
    ModelNotFoundError,
    PermissionDeniedError,
    PredictorError,
    TrimsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trims_predictors.tensors import Tensor

    from trims.manifests.serving import TensorType

METADATA = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [-1]}]}


class Served:
    """Answers of a server, and the requests that it got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.metadata: tuple[int, bytes] = (200, json.dumps(METADATA).encode())
        self.answer: tuple[int, bytes] = (200, b"")
        self.asked: list[tuple[str, Any]] = []
        self.body = b""
        self.header_length: str | None = None


@contextmanager
def serving() -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(*served.metadata)

        def do_POST(self) -> None:
            served.body = self.rfile.read(int(self.headers["content-length"]))
            self._say(*served.answer)

        def _say(self, status: int, body: bytes) -> None:
            served.asked.append((self.path, dict(self.headers)))
            self.send_response(status)
            if served.header_length is not None and self.command == "POST":
                self.send_header("Inference-Header-Content-Length", served.header_length)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Served(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def inputs(types: Sequence[TensorType]) -> list[Tensor]:
    assert [(each.name, each.dtype, each.shape) for each in types] == [("x", "FP64", (-1,))]
    return [from_array("x", np.array([1.0, 2.0]))]


def ask(url: str, token: str | None = None) -> Any:
    return HttpEndpoint(url, token, None, 60.0).run("a/b", inputs, 5.0)


def test_tensors_travel_in_binary_both_ways() -> None:
    with serving() as served:
        output = {"name": "y", "datatype": "FP64", "shape": [1], "parameters": {"binary_data_size": 8}}
        message = {"model_name": "a/b", "model_version": "1", "parameters": {"cold": True}, "outputs": [output]}
        header = json.dumps(message).encode()
        served.header_length, served.answer = str(len(header)), (200, header + np.array([3.0]).tobytes())
        found = ask(served.url, "secret")
        assert (found.model, found.version, found.parameters) == ("a/b", "1", {"cold": True})
        assert to_array(found.outputs[0]).tolist() == [3.0]
        path, headers = served.asked[-1]
        assert (path, headers["Authorization"]) == ("/v2/models/a%2Fb/infer", "Bearer secret")
        length = int({name.lower(): value for name, value in headers.items()}["inference-header-content-length"])
        assert json.loads(served.body[:length])["parameters"] == {"binary_data_output": True, "deadline": 5.0}
        assert np.frombuffer(served.body[length:]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (404, b'{"error": "no model"}', ModelNotFoundError, "no model"),
        (401, b'{"error": "a token"}', PermissionDeniedError, "a token; name the file that holds it"),
        (503, b'{"error": "full"}', BusyError, "full"),
        (500, b"<html>", PredictorError, "answered with status 500"),
        (418, b"[]", PredictorError, "answered with status 418"),
    ],
)
def test_an_error_of_the_endpoint_is_told_as_its_own(
    status: int, body: bytes, error: type[TrimsError], message: str
) -> None:
    with serving() as served:
        served.metadata = (status, body)
        with pytest.raises(error, match=message):
            ask(served.url)


@pytest.mark.parametrize("metadata", [b"hello", b"[]", b'{"inputs": [1]}'])
def test_another_program_on_that_port_is_no_endpoint(metadata: bytes) -> None:
    with serving() as served:
        served.metadata = (200, metadata)
        with pytest.raises(PredictorError, match="is no endpoint of trims; name another one"):
            ask(served.url)


def test_nothing_that_listens_is_told_apart_from_trouble() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Away, match=r"no endpoint answers at http://127\.0\.0\.1:"):
            ask(f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(CallerError, match="is no URL such as http"):
        ask("localhost:8000")


def test_an_endpoint_that_hangs_up_while_it_is_sent_much_is_not_taken_for_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            for answer in (_response(json.dumps(METADATA).encode()), b""):
                with server.accept()[0] as connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=refuse)
        thread.start()
        large = from_array("x", np.zeros(1 << 21))
        endpoint = HttpEndpoint(f"http://127.0.0.1:{server.getsockname()[1]}", None, None, 60.0)
        with pytest.raises(CallerError, match=r"hung up while 16,777,\d+ bytes were sent.*--max-body"):
            endpoint.run("m", lambda _: [large], None)
        thread.join()


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
