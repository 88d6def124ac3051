"""One CloudEvent in every host of functions: the handler sees the same, in binary and in structured mode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
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

HANDLERS = f"{SUPPORT}/own_handlers.py"
ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/orders", "type": "com.example.made", "subject": "caf\u00e9"}
#: Members of an event in structured mode, and the body that it has in binary mode.
EVENTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "json": ({"data": {"n": [1, None]}, "datacontenttype": "application/json"}, b'{"n": [1, null]}'),
    "text": ({"data": "\u20ac", "datacontenttype": "text/plain; charset=utf-8"}, "\u20ac".encode()),
    "bytes": ({"data_base64": "/wA=", "datacontenttype": "image/png"}, b"\xff\x00"),
    "no data, and an attribute of its own": ({"attempt": 7}, b""),
}


#: A platform's server: it prints its port.
SERVER = """
from wsgiref.simple_server import make_server
import trims
from own_handlers import shown
with make_server("127.0.0.1", 0, trims.faas.wsgi(shown, "m")) as server:
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


def over_http(url: str) -> Send:
    def send(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str]]:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as answer:
            return json.loads(answer.read()), {name.lower(): value for name, value in answer.headers.items()}

    return send


def by_call(daemon: Daemon, folder: Path) -> Send:
    def send(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str]]:
        (folder / "event").write_bytes(body)
        command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir), "call"]
        words = [f"{HANDLERS}:shown", "--model", "m", "--event-file", str(folder / "event")]
        words += [f"--header={name}: {value}" for name, value in headers.items()]
        done = subprocess.run([*command, *words], check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), {}

    return send


def in_binary_mode(members: dict[str, Any], body: bytes) -> tuple[dict[str, str], bytes]:
    own = {name: str(value) for name, value in members.items() if name not in ("data", "data_base64")}
    kind = own.pop("datacontenttype", "application/x-www-form-urlencoded")  # what urllib states by itself
    stated = {**ATTRIBUTES, "subject": "caf%C3%A9", **own}
    return {**{f"ce-{name}": value for name, value in stated.items()}, "content-type": kind}, body


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
        "endpoint": over_http(f"http://127.0.0.1:{endpoint.port}/functions/shown"),
        "wsgi": over_http(f"http://127.0.0.1:{served}/"),
        "trims call": by_call(daemon, tmp_path),
    }
    answers = {(host, mode): send(*event) for host, send in hosts.items() for mode, event in modes.items()}
    values = {"json": {"n": [1, None]}, "text": "\u20ac", "bytes": b"\xff\x00"}
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
    sends = [
        over_http(f"http://127.0.0.1:{endpoint.port}/functions/shown"), over_http(f"http://127.0.0.1:{served}/"),
    ]  # fmt: skip
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
