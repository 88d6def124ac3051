"""Requests of OpenAI's API, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trims_predictors.endpoint.generate.openai_requests import (
    CHAT,
    COMPLETIONS,
    DEFAULTS,
    EMBEDDINGS,
    HONOURED,
    NOT_OFFERED,
    TextRequest,
    read_request,
)
from trims_predictors.tensors import to_array

from trims.core.errors import CallerError

LEAST: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"input": "a"}, COMPLETIONS: {"prompt": "a"}, CHAT: {"messages": [{"role": "user", "content": "a"}]},
}  # fmt: skip


def read(route: str, **fields: Any) -> TextRequest:
    return read_request(route, json.dumps({"model": "m", **LEAST[route], **fields}).encode())


def fields_of(request: TextRequest) -> dict[str, Any]:
    assert not request.trouble
    return {each.name: to_array(each).tolist() for each in request.inputs}


def test_embeddings_are_of_a_text_or_of_several() -> None:
    assert fields_of(read(EMBEDDINGS)) == {"text": [b"a"]}
    several = read(EMBEDDINGS, input=["a", "b"], encoding_format="base64")
    assert fields_of(several) == {"text": [b"a", b"b"]}
    assert several.as_base64


@pytest.mark.parametrize(
    "value", [[], [1, 2], [[1]], {"a": 1}, 3, ["a", None]], ids=json.dumps
)  # fmt: skip
def test_an_input_that_is_no_text_is_refused_by_name(value: Any) -> None:
    assert "'input'" in read(EMBEDDINGS, input=value).trouble
    assert "'prompt'" in read(COMPLETIONS, prompt=value).trouble


def test_completions_take_the_parameters_of_sampling() -> None:
    made = read(COMPLETIONS, max_tokens=3, temperature=0.5, stop="x", seed=None, user="me", n=1)
    assert fields_of(made) == {
        "text": [b"a"], "return_full_text": [False], "max_new_tokens": [3], "temperature": [0.5], "stop": [b"x"],
    }  # fmt: skip
    assert not made.streams
    streaming = read(COMPLETIONS, echo=True, stream=True, stream_options={"include_usage": True})
    assert (streaming.streams, streaming.with_usage) == (True, True)
    assert fields_of(streaming)["return_full_text"] == [True]


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": 0}, {"creativity": 1}, {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"x": 1}}, {"stream": True, "stream_options": {"include_usage": 1}},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_field_that_cannot_be_followed_is_refused_by_name(more: dict[str, Any]) -> None:
    trouble = read(COMPLETIONS, **more).trouble
    assert any(name in trouble for name in (*more, *more.get("stream_options", {})))


def test_messages_may_come_in_pieces_of_text() -> None:
    pieces = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (messages,) = fields_of(read(CHAT, messages=[{"role": "user", "content": pieces}]))["messages"]
    assert json.loads(messages) == [{"role": "user", "content": "ab"}]


def test_a_turn_of_the_model_may_have_no_content() -> None:
    given = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": []}]
    (messages,) = fields_of(read(CHAT, messages=given))["messages"]
    assert [each["content"] for each in json.loads(messages)] == ["a", ""]


@pytest.mark.parametrize(
    "messages",
    [
        [], "hi", ["hi"], [{"content": "a"}], [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        [{"role": "user", "content": None}], [{"role": "user", "content": [{"type": "text", "text": 3}]}],
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_conversation_that_is_none_is_refused(messages: Any) -> None:
    assert "'messages'" in read(CHAT, messages=messages).trouble


def test_two_names_of_the_most_tokens_must_agree() -> None:
    assert not read(CHAT, max_tokens=3, max_completion_tokens=3).trouble
    assert "'max_completion_tokens'" in read(CHAT, max_tokens=3, max_completion_tokens=4).trouble


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"model": 3}', b'{"model": ""}', b"no JSON"])
def test_a_body_without_a_model_is_refused(body: bytes) -> None:
    with pytest.raises(CallerError):
        read_request(CHAT, body)


@pytest.mark.parametrize("route", [EMBEDDINGS, COMPLETIONS, CHAT])
def test_each_field_is_in_one_table_and_null_leaves_it_out(route: str) -> None:
    tables = (set(HONOURED[route]), set(DEFAULTS[route]), NOT_OFFERED[route])
    assert sum(map(len, tables)) == len(set().union(*tables))
    for name in set().union(*tables) - set(LEAST[route]) - {"model"}:
        assert not read(route, **{name: None}).trouble


@pytest.mark.parametrize("route", [EMBEDDINGS, COMPLETIONS, CHAT])
def test_values_of_other_types_are_refused_by_the_name_of_their_field(route: str) -> None:
    for name, kind in HONOURED[route].items():
        for value in (True, "false", 1, 0.5, {}, {"a": 1}, [], [1]):
            if name != "model" and not kind.fits(value):
                assert repr(name) in read(route, **{name: value}).trouble, (name, value)
    for name, values in DEFAULTS[route].items():
        for value in values:
            assert not read(route, **{name: value}).trouble, (name, value)
        for other in (True, False, 0, 1, 2, "none of these", {"a": 1}, [{}]):
            if not any(type(other) is type(each) and other == each for each in values):
                assert repr(name) in read(route, **{name: other}).trouble, (name, other)
    for name in NOT_OFFERED[route]:
        assert repr(name) in read(route, **{name: 1}).trouble
