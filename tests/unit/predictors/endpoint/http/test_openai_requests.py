"""Requests of OpenAI's API, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trims_predictors.endpoint.http.openai_requests import chat_fields, completion_fields, embedding_fields

from trims.core.errors import CallerError


def test_embeddings_are_of_a_text_or_of_several() -> None:
    assert embedding_fields({"model": "m", "input": "a"}) == ({"text": ["a"]}, False)
    assert embedding_fields({"model": "m", "input": ["a", "b"], "encoding_format": "base64"}) == (
        {"text": ["a", "b"]},
        True,
    )


@pytest.mark.parametrize(
    "more",
    [
        {"input": []}, {"input": [1, 2]}, {"input": [[1]]}, {"input": None}, {}, {"input": "a", "dimensions": 10},
        {"input": "a", "encoding_format": "hex"}, {"input": {"a": 1}},
    ],
)  # fmt: skip
def test_embeddings_of_anything_else_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        embedding_fields({"model": "m", **more})


def test_completions_take_the_parameters_of_sampling() -> None:
    made = completion_fields(
        {
            "model": "m",
            "prompt": "a",
            "max_tokens": 3,
            "temperature": 0.5,
            "stop": "x",
            "seed": None,
            "user": "me",
            "n": 1,
        }
    )
    assert made.fields == {
        "text": ["a"], "return_full_text": False, "max_new_tokens": 3, "temperature": 0.5, "stop": "x",
    }  # fmt: skip
    assert not made.streams
    streaming = completion_fields(
        {"model": "m", "prompt": ["a"], "echo": True, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert streaming.streams
    assert streaming.with_usage
    assert streaming.fields["return_full_text"] is True


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2}, {"best_of": 3}, {"logprobs": 3}, {"logit_bias": {"1": 1}}, {"suffix": "x"}, {"presence_penalty": 1},
        {"stream": "yes"}, {"stream_options": {"include_usage": True}}, {"creativity": 1},
        {"stream": True, "stream_options": {"x": 1}}, {"stream": True, "stream_options": 3},
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_followed_is_refused_by_name(more: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        completion_fields({"model": "m", "prompt": "a", **more})


def test_messages_may_come_in_pieces_of_text() -> None:
    pieces = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    made = chat_fields({"model": "m", "messages": [{"role": "user", "content": pieces}]})
    assert json.loads(made.fields["messages"]) == [{"role": "user", "content": "ab"}]


@pytest.mark.parametrize(
    "more",
    [
        {"messages": []}, {"messages": "hi"}, {}, {"messages": ["hi"]}, {"messages": [{"content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
        {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}},
    ],
)  # fmt: skip
def test_a_conversation_that_is_none_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        chat_fields({"model": "m", **more})


def test_fields_that_change_nothing_are_taken() -> None:
    messages = [{"role": "user", "content": "a"}]
    more = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "metadata": {"a": "b"}, "n": 1}
    assert chat_fields({"model": "m", "messages": messages, **more}).fields.keys() == {"messages"}
