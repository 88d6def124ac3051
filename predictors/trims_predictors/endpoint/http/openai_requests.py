"""Requests of OpenAI's API, checked field by field, as inputs of a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: Fields that say nothing about the answer.
_SILENT = frozenset({"model", "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"})
#: Fields that are taken only with the value that changes nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "logprobs": (False,),
    "logit_bias": ({},), "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "parallel_tool_calls": (True, False), "response_format": ({"type": "text"},), "modalities": (["text"],),
    "top_logprobs": (0,),
}  # fmt: skip
#: Fields of sampling -> our names; the last three are extensions that other servers have, too.
_SAMPLING = {
    "max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "temperature": "temperature",
    "top_p": "top_p", "seed": "seed", "stop": "stop", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}  # fmt: skip
_STREAMING = ("stream", "stream_options")


class Generate(NamedTuple):
    """A request for text.

    Attributes:
        fields: Inputs of the model.
        streams: The answer comes in parts.
        with_usage: The last part says how many tokens there were.
    """

    fields: Mapping[str, Any]
    streams: bool
    with_usage: bool


def embedding_fields(body: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the inputs of a request for embeddings, and whether they are wanted in base64. Raises CallerError."""
    _check_known(body, ("input", "encoding_format"))
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise CallerError(f"'encoding_format' is {form!r:.80}; write float or base64")
    return {"text": _texts(body.get("input"), "input")}, form == "base64"


def completion_fields(body: Mapping[str, Any]) -> Generate:
    """Return a request for completions. Raises CallerError."""
    _check_known(body, ("prompt", "echo", *_SAMPLING, *_STREAMING))
    fields = {"text": _texts(body.get("prompt"), "prompt"), "return_full_text": bool(body.get("echo", False))}
    return _generate(body, fields)


def chat_fields(body: Mapping[str, Any]) -> Generate:
    """Return a request for the next message of a conversation. Raises CallerError."""
    _check_known(body, ("messages", *_SAMPLING, *_STREAMING))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CallerError("'messages' must be a list with at least one message")
    return _generate(body, {"messages": json.dumps([_message(each) for each in messages])})


def _generate(body: Mapping[str, Any], fields: dict[str, Any]) -> Generate:
    for name, ours in _SAMPLING.items():
        if body.get(name) is None:
            continue
        if isinstance(body[name], bool) or fields.get(ours, body[name]) != body[name]:
            raise CallerError(f"{name!r} is {body[name]!r:.80}, which is no such value, or another than said elsewhere")
        fields[ours] = body[name]
    streams, options = body.get("stream") or False, body.get("stream_options") or {}
    if not isinstance(streams, bool) or not isinstance(options, dict):
        raise CallerError("'stream' must be true or false, and 'stream_options' an object")
    _check_known(options, ("include_usage", "include_obfuscation"))
    if options and not streams:
        raise CallerError("'stream_options' is for a request with 'stream': true")
    return Generate(fields, streams, bool(options.get("include_usage")))


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise CallerError(f"a message must be an object with a 'role' and 'content', not {message!r:.80}")
    return {**message, "content": _content(message.get("content"))}


def _content(content: Any) -> str:
    """Return the text of a message, which may come in pieces."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in content):
        return "".join(str(each.get("text", "")) for each in content)
    raise CallerError(f"the 'content' of a message must be text, or pieces of the type 'text', not {content!r:.80}")


def _texts(value: Any, name: str) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(each, str) for each in values):
        raise CallerError(f"{name!r} must be text, or a list of texts that is not empty; tokens are not taken")
    return values


def _check_known(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise CallerError for a field that is not known, or asks for what is not offered."""
    for name, value in body.items():
        if name in known or name in _SILENT or value is None:
            continue
        if name not in _NEUTRAL:
            raise CallerError(f"the field {name!r:.80} is not known here; known are {', '.join(known)}")
        if value not in _NEUTRAL[name]:
            raise CallerError(f"the field {name!r} is {json.dumps(value)[:80]}, which is not offered; leave it out")
