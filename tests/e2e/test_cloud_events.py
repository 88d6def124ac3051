"""One CloudEvent in every host of functions: the handler sees the same, in binary and in structured mode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest
from endpoints import Endpoint
from fleets import SUPPORT, register
from own_handlers import shown
from trims_client.faas import Function

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

    #: Headers and body of an event -> what the handler saw, and headers of the answer.
    Send = Callable[[dict[str, str], bytes], tuple[str, dict[str, str]]]

pytestmark = pytest.mark.usefixtures("forked_starts")
HANDLERS = f"{SUPPORT}/own_handlers.py"
ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/orders", "type": "com.example.made", "subject": "caf\u00e9"}
#: Members of an event in structured mode, and the body that it has in binary mode.
EVENTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "json": ({"data": {"n": [1, None]}, "datacontenttype": "application/json"}, b'{"n": [1, null]}'),
    "text": ({"data": "\u20ac", "datacontenttype": "text/plain; charset=utf-8"}, "\u20ac".encode()),
    "bytes": ({"data_base64": "/wA=", "datacontenttype": "image/png"}, b"\xff\x00"),
    "bytes of no type": ({"data_base64": "/wA="}, b"\xff\x00"),
    "no data, and an attribute of its own": ({"attempt": 7}, b""),
}
#: The type that curl states where its user states none.
CURL = "application/x-www-form-urlencoded"

#: A platform's server: it prints its port.
SERVER = """
from wsgiref.simple_server import WSGIRequestHandler, make_server
import trims
from own_handlers import shown
class Handler(WSGIRequestHandler):
    def get_environ(self):  # wsgiref states text/plain where the request states no type; other servers state none
        return {**super().get_environ(), "CONTENT_TYPE": self.headers.get("content-type", "")}
with make_server("127.0.0.1", 0, trims.faas.wsgi(shown, "m"), handler_class=Handler) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
"""


@pytest.fixture
def endpoint(daemon: Daemon, checkpoint: Callable[..., Path]) -> Iterator[Endpoint]:
    register(daemon, checkpoint)
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process")
    yield made
    made.end(signal.SIGKILL)


@pytest.fixture
def served(daemon: Daemon, endpoint: Endpoint) -> Iterator[int]:
    """The handler as a WSGI application: the port of its server."""
    del endpoint  # it has registered the model
    paths = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))
    given = {**os.environ, "PYTHONPATH": paths, "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SERVER], env=given, stdout=pipe, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        port = next(line for line in server.stdout if line.strip().isdigit())
        yield int(port)
        server.kill()


def posted(port: int, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, dict[str, str]]:
    """The status, the JSON and the headers of the answer. No header is sent but these."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), {name.lower(): value for name, value in answer.getheaders()}


def over_http(port: int, path: str = "/") -> Send:
    def send(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str]]:
        status, seen, told = posted(port, path, headers, body)
        assert status == 200, seen
        return seen, told

    return send


def called(daemon: Daemon, folder: Path, headers: dict[str, str], body: bytes) -> subprocess.CompletedProcess[str]:
    (folder / "event").write_bytes(body)
    command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir), "call"]
    words = [f"{HANDLERS}:shown", "--model", "m", "--event-file", str(folder / "event")]
    words += [f"--header={name}: {value}" for name, value in headers.items()]
    return subprocess.run(
        [*command, *words], check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def by_call(daemon: Daemon, folder: Path) -> Send:
    def send(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str]]:
        done = called(daemon, folder, headers, body)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), {}

    return send


def in_binary_mode(members: dict[str, Any], body: bytes) -> tuple[dict[str, str], bytes]:
    own = {name: str(value) for name, value in members.items() if name not in ("data", "data_base64")}
    kind = own.pop("datacontenttype", "" if body else CURL)
    stated = {**ATTRIBUTES, "subject": "caf%C3%A9", **own}
    headers = {f"ce-{name}": value for name, value in stated.items()}
    return {**headers, **({"content-type": kind} if kind else {})}, body


@pytest.mark.parametrize("what", EVENTS)
def test_a_handler_sees_one_cloud_event_in_every_host_and_mode(
    daemon: Daemon, endpoint: Endpoint, served: int, tmp_path: Path, what: str
) -> None:
    register_function(daemon)
    members, body = EVENTS[what]
    structured = json.dumps({**ATTRIBUTES, **members}).encode()
    modes = {
        "binary": in_binary_mode(members, body),
        "structured": ({"content-type": "application/cloudevents+json; charset=utf-8"}, structured),
    }
    hosts = {
        "endpoint": over_http(endpoint.port, "/functions/shown"),
        "wsgi": over_http(served),
        "trims call": by_call(daemon, tmp_path),
    }
    answers = {(host, mode): send(*event) for host, send in hosts.items() for mode, event in modes.items()}
    values = {"json": {"n": [1, None]}, "text": "\u20ac", "bytes": b"\xff\x00", "bytes of no type": b"\xff\x00"}
    own = {name: str(value) for name, value in members.items() if not name.startswith("data_") and name != "data"}
    expected = repr(sorted({**ATTRIBUTES, **own, "data": values.get(what)}.items()))
    assert {where: seen for where, (seen, _) in answers.items()} == dict.fromkeys(answers, expected)
    for (host, mode), (_, headers) in answers.items():
        if host != "trims call":
            assert (headers["ce-type"], headers["ce-source"]) == ("com.example.made.response", "/functions/shown"), mode


def test_a_plain_event_is_the_same_value_in_every_host(
    daemon: Daemon, endpoint: Endpoint, served: int, tmp_path: Path
) -> None:
    register_function(daemon)
    body = json.dumps({**ATTRIBUTES, "data": [1]}).encode()  # an event of this form, but no media type that says so
    sends = [over_http(endpoint.port, "/functions/shown"), over_http(served)]
    seen = [send({"content-type": "application/json"}, body)[0] for send in sends]
    seen.append(by_call(daemon, tmp_path)({}, body)[0])
    function = Function(shown, "m", runtime_dir=daemon.config.runtime_dir)  # as lambda_handler calls it
    seen.append(function(json.loads(body)))
    function.close()
    assert seen == [repr(sorted({**ATTRIBUTES, "data": [1]}.items()))] * 4


def register_function(daemon: Daemon) -> None:
    with admin(daemon.config.runtime_dir) as control:
        manifest = {"name": "shown", "artifact": {"model": "m"}, "predictor": {"handler": f"{HANDLERS}:shown"}}
        control.add(manifest, lazy=True)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"ce-type": " "}, "the CloudEvent has no header ce-type"),
        ({"ce-type": '" "'}, "the CloudEvent has no header ce-type"),
        ({"content-type": "text/plain; charset=latin-1"}, "the CloudEvent's data has the charset 'latin-1'"),
    ],
)
def test_a_cloud_event_that_is_refused_is_refused_in_every_host(
    daemon: Daemon, endpoint: Endpoint, served: int, tmp_path: Path, headers: dict[str, str], message: str
) -> None:
    register_function(daemon)
    event = {**in_binary_mode({}, b"a")[0], **headers}, b"a"
    for port, path in ((endpoint.port, "/functions/shown"), (served, "/")):
        status, told, _ = posted(port, path, *event)
        assert (status, told["error"].partition(";")[0]) == (400, message)
    done = called(daemon, tmp_path, *event)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_headers_of_no_cloud_event_are_refused_by_trims_call(daemon: Daemon, tmp_path: Path) -> None:
    for words, message in (
        (["--header=accept: a"], "--header is 'accept: a'"),
        (["--header", "ce-id: 1"], "no header ce-specversion"),
        (["--header", "content-type: text/plain"], "--header states no CloudEvent"),
        (["--header", "content-type: application/cloudevents+json"], "no attribute specversion"),
    ):
        command = [sys.executable, "-m", "trims.cli.main", "call", f"{HANDLERS}:shown", "--model", "m", *words]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"}
        )
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
