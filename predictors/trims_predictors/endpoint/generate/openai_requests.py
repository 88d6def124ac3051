"""Requests of OpenAI's API, checked field by field, as inputs of a model.

Every field that OpenAI documents is in one of three tables: `HONOURED`, `DEFAULTS` (taken only with a value that asks
for nothing), and `NOT_OFFERED` (refused). `null` leaves a field out. Values have the type that is documented and no
other: `true` is no number, and `"false"` no truth value.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import CallerError
from trims_predictors.endpoint.generate.generation import FULL_TEXT, request_of
from trims_predictors.endpoint.json.text import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims_predictors.tensors import Tensor

EMBEDDINGS, COMPLETIONS, CHAT = "embeddings", "completions", "chat/completions"


class Kind(NamedTuple):
    """Values that a field takes.

    Attributes:
        words: Describes them.
        fits: Returns whether a value is one of them.
    """

    words: str
    fits: Callable[[Any], bool]


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


_TEXT = Kind("text", lambda value: isinstance(value, str))
_TEXTS = Kind(
    "text, or a list of texts that is not empty; tokens are not taken",
    lambda value: isinstance(value, str) or _is_list_of_texts(value),
)
_BOOL = Kind("true or false", lambda value: isinstance(value, bool))
_WHOLE = Kind("a whole number", lambda value: type(value) is int)
_NUMBER = Kind("a number", lambda value: type(value) is int or isinstance(value, float))
_OBJECT = Kind("an object", lambda value: isinstance(value, dict))
_MESSAGES = Kind("a list with at least one message", lambda value: isinstance(value, list) and bool(value))
_FORM = Kind("float or base64", lambda value: value in ("float", "base64") and isinstance(value, str))
#: Fields of sampling; they are inputs of the model. The last three are extensions that other servers have, too.
_SAMPLING = {
    "max_tokens": _WHOLE, "temperature": _NUMBER, "top_p": _NUMBER, "seed": _WHOLE, "stop": _TEXTS, "top_k": _WHOLE,
    "min_p": _NUMBER, "repetition_penalty": _NUMBER,
}  # fmt: skip
_CHAT_SAMPLING = {"max_completion_tokens": _WHOLE, **_SAMPLING}
#: Fields whose inputs have another name.
_NAMES = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"}
_STREAMING = {"stream": _BOOL, "stream_options": _OBJECT}
#: Texts for the records of who runs the server: by OpenAI's definition no answer depends on them.
_HINTS = {"user": _TEXT}
_CHAT_HINTS = {**_HINTS, "safety_identifier": _TEXT, "prompt_cache_key": _TEXT}
#: Route -> fields that are followed, with their kind of values.
HONOURED: Mapping[str, Mapping[str, Kind]] = {
    EMBEDDINGS: {"model": _TEXT, "input": _TEXTS, "encoding_format": _FORM, **_HINTS},
    COMPLETIONS: {"model": _TEXT, "prompt": _TEXTS, "echo": _BOOL, **_SAMPLING, **_STREAMING, **_HINTS},
    CHAT: {"model": _TEXT, "messages": _MESSAGES, **_CHAT_SAMPLING, **_STREAMING, **_CHAT_HINTS},
}
_TEXT_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0), "logit_bias": ({},),
}  # fmt: skip
#: Route -> fields that are taken only with a value that changes nothing.
DEFAULTS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    EMBEDDINGS: {},
    COMPLETIONS: {**_TEXT_DEFAULTS, "best_of": (1,), "suffix": ("",)},
    CHAT: {
        **_TEXT_DEFAULTS, "logprobs": (False,), "top_logprobs": (0,), "store": (False,), "metadata": ({},),
        "service_tier": ("auto", "default"), "tools": ([],), "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False), "functions": ([],), "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},), "modalities": (["text"],),
    },
}  # fmt: skip
#: Route -> fields that OpenAI documents and the endpoint does not have.
NOT_OFFERED: Mapping[str, frozenset[str]] = {
    EMBEDDINGS: frozenset({"dimensions"}),
    COMPLETIONS: frozenset({"logprobs"}),
    CHAT: frozenset({
        "audio", "moderation", "prediction", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
        "verbosity", "web_search_options",
    }),
}  # fmt: skip
#: Fields of `stream_options`: the second is taken as false only, for nothing is added that hides sizes of parts.
_STREAM_OPTIONS = {"include_usage": _BOOL, "include_obfuscation": Kind("false", lambda value: value is False)}


class TextRequest(NamedTuple):
    """A request of the API.

    Attributes:
        streams: The answer comes in parts.
        with_usage: The last part says how many tokens there were.
        as_base64: Vectors are wanted in base64.
        trouble: Why it is refused; empty if it is not.
    """

    model: str
    inputs: list[Tensor]
    streams: bool = False
    with_usage: bool = False
    as_base64: bool = False
    trouble: str = ""


def read_request(route: str, text: bytes) -> TextRequest:
    """Return the request of a body. Raises CallerError for a body that names no model.

    Args:
        route: One of EMBEDDINGS, COMPLETIONS and CHAT.
    """
    body = load_json(text)
    model = body.get("model") if isinstance(body, dict) else None
    if not isinstance(model, str) or not model:
        raise CallerError("the request must be an object with the name of a 'model'")
    try:
        return _request(route, model, body)
    except CallerError as error:
        return TextRequest(model, [], trouble=str(error))


def _request(route: str, model: str, body: Mapping[str, Any]) -> TextRequest:
    given = _checked(route, body)
    if route == EMBEDDINGS:
        inputs = request_of({"text": given["input"]}).inputs
        return TextRequest(model, inputs, as_base64=given.get("encoding_format") == "base64")
    sampling = {_NAMES.get(name, name): given[name] for name in _CHAT_SAMPLING if name in given}
    if len({given[name] for name in ("max_tokens", "max_completion_tokens") if name in given}) > 1:
        raise CallerError("'max_tokens' and 'max_completion_tokens' mean the same and differ; send one")
    if route == COMPLETIONS:
        fields = {"text": given["prompt"], FULL_TEXT: given.get("echo", False)}
    else:
        fields = {"messages": json.dumps([_message(each) for each in given["messages"]])}
    streams, options = given.get("stream", False), given.get("stream_options", {})
    if options and not streams:
        raise CallerError("'stream_options' is for a request with 'stream': true")
    for name, value in options.items():
        _check(f"stream_options.{name}", value, _STREAM_OPTIONS.get(name), tuple(_STREAM_OPTIONS))
    return TextRequest(model, request_of({**fields, **sampling}).inputs, streams, bool(options.get("include_usage")))


def _checked(route: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are followed. Raises CallerError for one that asks for what is not offered."""
    honoured, defaults = HONOURED[route], DEFAULTS[route]
    given = {}
    for name, value in body.items():
        if value is None:
            continue
        if name in defaults:
            if not any(_is_same(value, each) for each in defaults[name]):
                raise CallerError(f"the field {name!r} is {json.dumps(value)[:80]}, which is not offered; leave it out")
            continue
        if name in NOT_OFFERED[route]:
            raise CallerError(f"the field {name!r} is not offered; leave it out")
        _check(name, value, honoured.get(name), tuple(honoured))
        given[name] = value
    for name in ("input", "prompt", "messages"):
        if name in honoured and name not in given:
            raise CallerError(f"the request lacks the field {name!r}: {honoured[name].words}")
    return given


def _check(name: str, value: Any, kind: Kind | None, known: tuple[str, ...]) -> None:
    if kind is None:
        raise CallerError(f"the field {name!r:.80} is not known here; known are {', '.join(known)}")
    if value is not None and not kind.fits(value):
        raise CallerError(f"the field {name!r} is {json.dumps(value)[:80]}; it must be {kind.words}")


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values of JSON are equal and of one type; lists and objects with one type of values."""
    return type(value) is type(other) and value == other


#: Role of the model's own turns.
_ASSISTANT = "assistant"


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise CallerError(f"'messages' holds {message!r:.80}; a message is an object with a 'role' and 'content'")
    content = message.get("content")
    if content is None and message["role"] == _ASSISTANT:  # a turn that only calls tools has none
        return {**message, "content": ""}
    return {**message, "content": _content(content)}


def _content(content: Any) -> str:
    """Return the text of a message, which may come in pieces."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(map(_is_piece, content)):
        return "".join(each["text"] for each in content)
    raise CallerError(
        f"the 'content' of a message in 'messages' must be text, or pieces of the type 'text', not {content!r:.80}"
    )


def _is_piece(piece: Any) -> bool:
    return isinstance(piece, dict) and piece.get("type") == "text" and isinstance(piece.get("text"), str)
