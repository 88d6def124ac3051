"""Triton's generate extension over HTTP; the service behind is a stand-in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgi import Reply, call
from generating import PARTS, Generator
from trims_predictors.endpoint.http.app import build_app

from trims.core.errors import CallerError, PredictorError


def ask(service: Generator, path: str, body: Any, **headers: str) -> Reply:
    made: Any = service
    app = build_app(made, most_body_bytes=1 << 16, token=None, loopback=True)
    return asyncio.run(call(app, "POST", path, body, **headers))


def events(reply: Reply) -> list[Any]:
    lines = reply.body.decode().split("\n\n")
    assert lines[-1] == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_text_is_answered_whole() -> None:
    service = Generator()
    reply = ask(service, "/v2/models/m/generate", {"text_input": "hi", "max_tokens": 3, "id": "7"})
    assert reply.json() == {"id": "7", "model_name": "m", "model_version": "1.0.0", "text_output": "one two three"}
    assert service.asked == [{"return_full_text": [False], "text_input": [b"hi"], "max_tokens": [3]}]


def test_parameters_are_inputs_as_well() -> None:
    service = Generator()
    ask(service, "/v2/models/m/versions/1.0.0/generate", {"text_input": "hi", "parameters": {"temperature": 0.5}})
    assert service.asked[0]["temperature"] == [0.5]
    ask(
        service,
        "/v2/models/m/generate",
        {"text_input": "hi", "stream": False, "parameters": {"return_full_text": True}},
    )
    assert service.asked[1] == {"return_full_text": [True], "text_input": [b"hi"]}


def test_a_stream_has_an_event_for_each_part() -> None:
    reply = ask(Generator(), "/v2/models/m/generate_stream", {"text_input": "hi"})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert [each["text_output"] for each in events(reply)] == list(PARTS)
    assert {each["model_version"] for each in events(reply)} == {"1.0.0"}


def test_an_error_before_the_first_part_has_its_status_and_one_later_is_an_event() -> None:
    service = Generator()
    service.error = CallerError("no such parameter")
    reply = ask(service, "/v2/models/m/generate_stream", {"text_input": "hi"})
    assert (reply.status, reply.json()) == (400, {"error": "no such parameter"})
    service.error, service.fails_after = PredictorError("it died"), 2
    found = events(ask(service, "/v2/models/m/generate_stream", {"text_input": "hi"}))
    assert [each.get("text_output") for each in found] == [*PARTS[:2], None]
    assert found[-1] == {"error": "it died"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text_input": "hi", "stream": True}, 400),
        ({"x": 1, "parameters": {"x": 2}}, 400),
        (b"no JSON", 400),
        ([1], 400),
        ({"parameters": [1]}, 400),
        ({"x": {}}, 400),
        (b"x" * 70_000, 413),
    ],
)
def test_a_body_that_is_none_is_refused(body: Any, status: int) -> None:
    assert ask(Generator(), "/v2/models/m/generate", body).status == status


def test_an_unknown_model_is_not_found() -> None:
    for path in ("/v2/models/other/generate", "/v2/models/other/generate_stream"):
        assert ask(Generator(), path, {"text_input": "hi"}).status == 404


def test_requests_are_counted_by_how_they_end() -> None:
    service = Generator()
    ask(service, "/v2/models/m/generate", {"text_input": "hi"})
    ask(service, "/v2/models/m/generate_stream", {"text_input": "hi"})
    assert service.counted("ok") == 2
    service.error = CallerError("wrong")
    ask(service, "/v2/models/m/generate_stream", {"text_input": "hi"})
    assert service.counted(CallerError.code) == 1
