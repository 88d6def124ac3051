"""Predictors as `trims ps` shows them: asked of an endpoint that answers, refuses, or does not listen."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from trims.cli import predictors
from trims.cli.predictors import say_predictors, say_prepared
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


class Preparing:
    """An endpoint that has prepared for the first request of `bert` once it was asked three times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
        self.asked = 0
        console = Console(file=io.StringIO(), force_terminal=terminal)
        monkeypatch.setattr(predictors, "notes", lambda: console)
        monkeypatch.setattr(predictors, "read_address", lambda _: EndpointAddress(1, "http://127.0.0.1:9"))
        monkeypatch.setattr(predictors, "_state", self.state)
        monkeypatch.setattr(predictors, "_POLL_S", 0.0)

    def state(self, *_: object) -> dict[str, list[str]]:
        self.asked += 1
        return {"preparing": ["other", "bert"] if self.asked < 3 else ["other"]}


def test_a_terminal_waits_until_the_endpoint_is_prepared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    side = Preparing(monkeypatch, terminal=True)
    say_prepared(["bert"], "/run")
    assert (side.asked, capsys.readouterr().err) == (3, "bert: ready\n")


def test_a_wait_for_the_endpoint_has_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Preparing(monkeypatch, terminal=True)
    monkeypatch.setattr(predictors, "_PREPARED_S", 0.0)
    say_prepared(["bert"], "/run")
    assert "takes longer" in capsys.readouterr().err


def test_a_log_gets_one_line_of_what_is_being_prepared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    side = Preparing(monkeypatch, terminal=False)
    say_prepared(["bert", "gpt"], "/run")
    printed = capsys.readouterr().err
    assert (side.asked, printed.count("\n"), printed.partition(":")[0]) == (1, 1, "bert")


def test_an_endpoint_that_is_gone_or_refuses_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: EndpointAddress
) -> None:
    for each in (None, EndpointAddress(1, "http://127.0.0.1:9"), address):
        monkeypatch.setattr(predictors, "read_address", lambda _, each=each: each)
        say_prepared(["bert"], "/run")
    assert capsys.readouterr().err == ""
