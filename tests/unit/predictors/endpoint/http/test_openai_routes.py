"""OpenAI's API over HTTP; the service behind is a stand-in. Its own client asks a real one in tests/e2e."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asgi import Reply, call
from generating import PARTS, Generator
from trims_predictors.endpoint.http.app import build_app

from trims.core.errors import BusyError, PredictorError

MESSAGES = [{"role": "user", "content": "hi"}]


def ask(service: Generator, path: str, body: Any = b"", method: str = "POST", token: str | None = None) -> Reply:
    made: Any = service
    app = build_app(made, most_body_bytes=1 << 16, token=token, loopback=True)
    return asyncio.run(call(app, method, path, body))


def chunks(reply: Reply) -> list[Any]:
    lines = reply.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.mark.parametrize("folder", ["/v1", "/openai/v1"])
def test_models_are_listed(folder: str) -> None:
    assert ask(Generator(), f"{folder}/models", method="GET").json()["data"][0]["id"] == "m"
    assert ask(Generator(), f"{folder}/models/m", method="GET").json()["object"] == "model"
    missing = ask(Generator(), f"{folder}/models/other", method="GET")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_each_version_is_listed_once_and_the_name_that_leads_to_one() -> None:
    service = Generator()
    service.registered = [
        SimpleNamespace(name="m", reference=f"m@{version}", versions=("1", "2")) for version in ("1", "2")
    ]
    listed = ask(service, "/v1/models", method="GET").json()["data"]
    assert [each["id"] for each in listed] == ["m", "m@1", "m@2"]


@pytest.mark.parametrize(
    "fields", [{"max_tokens": True}, {"max_tokens": 2, "max_completion_tokens": 5}, {"nonsense": 1}, {"logprobs": 2}]
)
def test_what_contradicts_itself_or_is_not_known_is_refused(fields: dict[str, Any]) -> None:
    reply = ask(Generator(), "/v1/completions", {"model": "m", "prompt": "hi", **fields})
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")


def test_what_the_api_has_and_the_endpoint_has_not_is_refused_in_its_form() -> None:
    reply = ask(Generator(), "/v1/responses", {"model": "m"})
    assert (reply.status, reply.json()["error"]["type"]) == (404, "not_found_error")


def test_embeddings_are_numbers_or_base64() -> None:
    plain = ask(Generator(), "/v1/embeddings", {"model": "m", "input": "a"}).json()
    assert plain["data"] == [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]
    assert plain["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    packed = ask(Generator(), "/v1/embeddings", {"model": "m", "input": "a", "encoding_format": "base64"}).json()
    assert np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4").tolist() == [0.5, 1.0]


def test_a_completion_has_text_reason_and_usage() -> None:
    service = Generator()
    made = ask(service, "/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 3}).json()
    assert made["object"] == "text_completion"
    assert made["choices"] == [{"index": 0, "text": "one two three", "logprobs": None, "finish_reason": "stop"}]
    assert made["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert service.asked == [{"text": [b"hi"], "return_full_text": [False], "max_new_tokens": [3]}]


def test_a_streamed_completion_ends_with_its_reason() -> None:
    body = {"model": "m", "prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
    found = chunks(ask(Generator(), "/v1/completions", body))
    assert [each["choices"][0]["text"] for each in found[:-1]] == [*PARTS, ""]
    assert [each["choices"][0]["finish_reason"] for each in found[:-1]] == [None, None, None, "stop"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 3
    assert len({each["id"] for each in found}) == 1


def test_a_message_is_the_next_of_its_conversation() -> None:
    made = ask(Generator(), "/v1/chat/completions", {"model": "m", "messages": MESSAGES}).json()
    assert made["choices"][0]["message"] == {"role": "assistant", "content": "one two three", "refusal": None}
    assert made["object"] == "chat.completion"


def test_a_streamed_message_says_its_role_once() -> None:
    found = chunks(ask(Generator(), "/v1/chat/completions", {"model": "m", "messages": MESSAGES, "stream": True}))
    deltas = [each["choices"][0]["delta"] for each in found]
    assert deltas[0] == {"role": "assistant", "content": "one"}
    assert deltas[1:] == [{"content": " two"}, {"content": " three"}, {}]
    assert {each["object"] for each in found} == {"chat.completion.chunk"}


@pytest.mark.parametrize("streams", [False, True])
def test_errors_before_an_answer_have_a_status_and_the_apis_form(streams: bool) -> None:
    service = Generator()
    service.error = BusyError("too many")
    reply = ask(service, "/v1/completions", {"model": "m", "prompt": "hi", "stream": streams})
    assert (reply.status, reply.json()["error"]["type"]) == (503, "server_error")
    assert reply.headers["retry-after"]
    assert ask(service, "/v1/completions", {"model": "other", "prompt": "hi", "stream": streams}).status == 404


def test_an_error_in_a_stream_is_its_last_event() -> None:
    service = Generator()
    service.error, service.fails_after = PredictorError("it died"), 1
    body = ask(service, "/v1/completions", {"model": "m", "prompt": "hi", "stream": True}).body.decode()
    last = json.loads(body.split("\n\n")[-2].removeprefix("data: "))
    assert last["error"]["message"] == "it died"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"model": 3}', b'{"model": ""}', b"no JSON"])
def test_a_request_without_a_model_is_refused(body: bytes) -> None:
    reply = ask(Generator(), "/v1/completions", body)
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_missing_token_has_the_apis_form() -> None:
    reply = ask(Generator(), "/v1/models", method="GET", token="secret")
    assert (reply.status, reply.json()["error"]["type"]) == (401, "authentication_error")
    assert ask(Generator(), "/v1/completions", method="GET").json()["error"]["type"] == "invalid_request_error"
