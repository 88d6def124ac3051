"""Predictors as `trims ps` shows them: asked of an endpoint that answers, refuses, or does not listen."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from trims.cli.predictors import say_predictors
from trims.wire.endpoint_file import EndpointAddress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNTS = {"idle": 1, "busy": 2, "starting": 0, "queued": 7}
STATE = {"models": {"bert": COUNTS, "gpt": COUNTS}, "versions": {"bert@1": COUNTS, "gpt@1": COUNTS, "gpt@2": COUNTS}}


class Handler(BaseHTTPRequestHandler):
    """Answers with the state to those who have the token."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer secret"
        body = json.dumps(STATE).encode() if known else b"{}"
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        del given


@pytest.fixture
def address() -> Iterator[EndpointAddress]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield EndpointAddress(1, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def test_each_model_has_a_line_or_each_version_if_several_have_predictors(
    address: EndpointAddress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret\n")
    say_predictors(address, tmp_path / "token")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert lines == [[name, "1", "2", "0", "7"] for name in ("bert", "gpt@1", "gpt@2")]


def test_an_endpoint_that_needs_a_token_is_a_note_that_names_the_flag(
    address: EndpointAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    say_predictors(address, None)
    printed = capsys.readouterr()
    assert (printed.out, "--token-file" in printed.err) == ("", True)


def test_an_endpoint_that_is_gone_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    say_predictors(EndpointAddress(1, "http://127.0.0.1:9"), None)
    assert "does not answer" in capsys.readouterr().err
