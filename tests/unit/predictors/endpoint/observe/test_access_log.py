"""Requests in the log: each has an id that comes back to its client, and a line if lines are wanted."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.endpoint.observe.access_log import RequestLog, begin_call, call_ends, request_id

from trims import logs

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "traced", "expected"),
    [
        ("mine-7", TRACE, "mine-7"),
        ("", TRACE, "0af7651916cd43dd8448eb211c80319c"),
        ("two words", TRACE, "0af7651916cd43dd8448eb211c80319c"),
        ("x" * 129, TRACE, "0af7651916cd43dd8448eb211c80319c"),
        ("a\nb", "no trace", None),
        ("", f"ff{TRACE[2:]}", None),
        ("", f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        ("", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", None),
        ("", f"{TRACE[:-2]}00", "0af7651916cd43dd8448eb211c80319c"),
        ("\u0663", "", None),
        ("", "", None),
    ],
)
def test_an_id_is_the_clients_or_its_traces_or_made_here(given: str, traced: str, expected: str | None) -> None:
    found = request_id(given, traced)
    assert found == expected if expected else len(found) == 16
    assert expected or found != request_id(given, traced)


def ask(path: str, *, lines: bool, headers: dict[str, str] | None = None, fails: bool = False) -> tuple[Any, Any]:
    """The headers that a client gets, and what lines of the request's log would name."""
    sent: list[Message] = []
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(dict(logs.facts()))
        if fails:
            raise ZeroDivisionError
        await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"12345"})

    async def run() -> None:
        async def receive() -> Message:
            raise AssertionError("it is not asked for")

        async def send(message: Message) -> None:
            sent.append(message)

        given = [(name.encode(), each.encode()) for name, value in (headers or {}).items() for each in value.split("|")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": given, "client": ("127.0.0.1", 7)}
        await RequestLog(app, lines=lines)(scope, receive, send)

    asyncio.run(run())
    return dict(sent[0]["headers"]), seen[0]


def test_an_id_comes_back_and_lines_of_the_request_name_it_and_the_model() -> None:
    headers, facts = ask("/v2/models/a b/infer", lines=False, headers={"x-request-id": "r7"})
    assert headers == {b"a": b"b", b"x-request-id": b"r7"}
    assert facts == {"request": "r7", "model": "a b"}
    assert ask("/functions/f", lines=False)[1]["model"] == "f"
    assert "model" not in ask("/functions", lines=False)[1]
    assert "model" not in ask("/metrics", lines=False)[1]
    assert logs.facts() == {}


def test_a_request_is_one_line_if_lines_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask("/v2/models/m/infer", lines=False)
    assert "trims" not in "".join(each.name for each in caplog.records)
    ask("/v2/\n\x1bm", lines=True)
    (line,) = (each for each in caplog.records if each.name.startswith("trims"))
    assert line.getMessage().startswith(r"127.0.0.1 POST '/v2/\n\x1bm' 201 in ")
    assert line.getMessage().endswith(" ms, 5 bytes")
    found = line.facts  # type: ignore[attr-defined]
    assert (found["status"], found["nbytes"], found["method"]) == (201, 5, "POST")


def test_a_request_that_is_not_answered_is_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ZeroDivisionError):
        ask("/v2", lines=True, fails=True)
    assert "POST /v2 no answer in" in caplog.text


@pytest.mark.parametrize(("ends", "status"), [("", "OK"), ("NOT_FOUND", "NOT_FOUND"), ("cancel", "CANCELLED")])
def test_a_call_over_grpc_is_one_line_with_its_status(caplog: pytest.LogCaptureFixture, ends: str, status: str) -> None:
    caplog.set_level(logging.INFO)

    async def call() -> None:
        begin_call({"x-request-id": "r8"}, "/S/M", lines=True)
        assert logs.facts()["request"] == "r8"
        if ends == "cancel":
            raise asyncio.CancelledError
        if ends:
            call_ends(ends)

    async def run() -> None:
        await asyncio.wait([asyncio.ensure_future(call())])
        await asyncio.sleep(0)

    asyncio.run(run())
    (line,) = (each for each in caplog.records if each.name.startswith("trims"))
    assert line.getMessage().startswith(f"grpc /S/M {status} in ")


@pytest.mark.parametrize("name", ["traceparent", "x-request-id"])
def test_a_header_that_is_there_twice_names_no_request(name: str) -> None:
    headers, _ = ask("/x", lines=False, headers={name: f"{TRACE}|{TRACE}"})
    assert len(headers[b"x-request-id"]) == 16
