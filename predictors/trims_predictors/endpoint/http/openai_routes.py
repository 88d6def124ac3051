"""OpenAI's API over HTTP: models, embeddings, completions and chat, for the programs that speak it.

Paths are those of OpenAI, `/v1/...`, and of KServe, `/openai/v1/...`. A field of a request that the model cannot
follow is refused; those that say nothing about the answer (`user`, `metadata`, `store`) are taken.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse

from trims.core.errors import CallerError, TrimsError
from trims_predictors.endpoint.bodies import read_body
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.generation import GENERATED, request_of, values_of
from trims_predictors.endpoint.http.event_streams import event, event_stream
from trims_predictors.endpoint.http.openai_errors import FOLDERS, error_of
from trims_predictors.endpoint.http.openai_requests import chat_fields, completion_fields, embedding_fields
from trims_predictors.endpoint.json.text import load_json
from trims_predictors.endpoint.part_streams import parts_of
from trims_predictors.endpoint.tracing import http_span, recorded
from trims_predictors.tensors import to_array

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    import numpy as np
    from fastapi import APIRouter, Request, Response

    from trims_predictors.deployment.deployment import Answer
    from trims_predictors.endpoint.http.openai_requests import Generate
    from trims_predictors.endpoint.metrics import Counting
    from trims_predictors.endpoint.otlp import RequestSpan
    from trims_predictors.endpoint.service import Service

_COUNTS = (GENERATED, "finish_reason", "prompt_tokens", "completion_tokens")
_DONE = event("[DONE]")


def add_openai_routes(router: APIRouter, service: Service, most_body_bytes: int) -> None:
    """Add the routes."""
    for folder in FOLDERS:
        _add_model_routes(router, service, folder)
        for path, answer in (
            (f"{folder}/embeddings", _embeddings),
            (f"{folder}/completions", _completions),
            (f"{folder}/chat/completions", _chat_completions),
        ):
            router.add_route(path, _route(service, path, most_body_bytes, answer), methods=["POST"])


def _add_model_routes(router: APIRouter, service: Service, folder: str) -> None:
    @router.get(f"{folder}/models")
    async def models() -> dict[str, Any]:
        models = await service.models()
        names = [each.name for each in models] + [each.reference for each in models if len(each.versions) > 1]
        return {"object": "list", "data": [_model(name) for name in dict.fromkeys(names)]}

    @router.get(f"{folder}/models/{{model}}")
    async def model(model: str) -> dict[str, Any]:
        await service.deployment(model)  # raises for one that is not there
        return _model(model)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "trims"}


@dataclass(frozen=True, slots=True)
class _Call:
    """One request to a model.

    Attributes:
        service: Answers it.
        request: As it came.
        body: Its fields.
        model: Name of the model.
        counting: Takes the answer, to count it.
        span: Of the request; None for none.
        lasting: Ends with the response.
    """

    service: Service
    request: Request
    body: dict[str, Any]
    model: str
    counting: Counting
    span: RequestSpan | None
    lasting: contextlib.ExitStack

    async def run(self, fields: Mapping[str, Any], wanted: tuple[str, ...]) -> Answer:
        """Return the model's answer with these outputs."""
        asked = request_of(fields, wanted)
        _, answer = await self.service.run(self.model, "", asked, span=self.span)
        self.counting.answer = answer
        return answer


def _route(service: Service, path: str, most_body_bytes: int, answer: Callable[[_Call], Any]) -> Any:
    async def call(request: Request) -> Response:
        body = load_json(bytes(await read_body(request, most_body_bytes)))
        model = body.get("model") if isinstance(body, dict) else None
        if not isinstance(model, str) or not model:
            raise CallerError("the request must be an object with the name of a 'model'")
        with contextlib.ExitStack() as lasting:
            counting = lasting.enter_context(service.metrics.request(model, "http"))
            lasting.enter_context(recorded(request.headers.items(), f"POST {path}", model))
            span = lasting.enter_context(http_span(service.tracing, request, path, model))
            made: Response = await answer(_Call(service, request, body, model, counting, span, lasting))
            return made

    return call


async def _embeddings(call: _Call) -> Response:
    fields, as_base64 = embedding_fields(call.body)

    async def embedded() -> Response:
        answer = await call.run(fields, ("embedding", "prompt_tokens"))
        found = {each.name: to_array(each) for each in answer.outputs}
        vectors = found["embedding"].astype("<f4")
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(each, as_base64)}
            for index, each in enumerate(vectors)
        ]
        tokens = int(found["prompt_tokens"].sum())
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "model": call.model, "data": data, "usage": usage})

    return await unless_gone(call.request, embedded())


def _vector(vector: np.ndarray[Any, Any], as_base64: bool) -> Any:
    return base64.b64encode(vector.tobytes()).decode() if as_base64 else vector.tolist()


async def _completions(call: _Call) -> Response:
    return await _generate(call, completion_fields(call.body), "cmpl", "text_completion", _text_choice)


async def _chat_completions(call: _Call) -> Response:
    streams = bool(call.body.get("stream"))
    kind = "chat.completion.chunk" if streams else "chat.completion"
    return await _generate(call, chat_fields(call.body), "chatcmpl", kind, _delta if streams else _message)


def _text_choice(index: int, text: str, reason: str | None, first: bool) -> dict[str, Any]:
    del first
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _message(index: int, text: str, reason: str | None, first: bool) -> dict[str, Any]:
    del first
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}


def _delta(index: int, text: str, reason: str | None, first: bool) -> dict[str, Any]:
    delta = {**({"role": "assistant"} if first else {}), **({"content": text} if text or first else {})}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


async def _generate(
    call: _Call, asked: Generate, prefix: str, kind: str, choice: Callable[[int, str, str | None, bool], dict[str, Any]]
) -> Response:
    """Answer with text, whole or in parts."""
    head = {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": call.model}
    if asked.streams:
        return await event_stream(call.request, _chunks(call, asked, head, choice), call.lasting)

    async def whole() -> Response:
        values = _columns(await call.run(asked.fields, _COUNTS))
        texts, reasons = values[GENERATED], values["finish_reason"]
        choices = [choice(index, *pair, True) for index, pair in enumerate(zip(texts, reasons, strict=True))]
        return JSONResponse({**head, "choices": choices, "usage": _usage(values)})

    return await unless_gone(call.request, whole())


def _columns(answer: Answer) -> dict[str, list[Any]]:
    found = values_of(answer.outputs)
    return {name: value if isinstance(value, list) else [value] for name, value in found.items()}


def _usage(values: Mapping[str, list[Any]]) -> dict[str, int]:
    prompt, completion = sum(values["prompt_tokens"]), sum(values["completion_tokens"])
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def _chunks(
    call: _Call, asked: Generate, head: dict[str, Any], choice: Callable[[int, str, str | None, bool], dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    """Yield a chunk for each part, one that says why it ended, and one with the usage if that is asked for."""
    request, first = request_of(asked.fields, _COUNTS), True
    usage = {"usage": None} if asked.with_usage else {}

    def chunk(text: str, reason: str | None) -> bytes:
        nonlocal first
        made = {**head, "choices": [choice(0, text, reason, first)], **usage}
        first = False
        return event(json.dumps(made))

    try:
        async with contextlib.aclosing(
            parts_of(lambda take: call.service.run(call.model, "", request, on_part=take, span=call.span))
        ) as parts:
            async for part in parts:
                if part.end is None:
                    yield chunk(str(values_of(part.tensors)[GENERATED]), None)
                    continue
                call.counting.answer = part.end[1]
                values = _columns(part.end[1])
                yield chunk("", values["finish_reason"][0])
                if asked.with_usage:
                    yield event(json.dumps({**head, "choices": [], "usage": _usage(values)}))
        yield _DONE
    except TrimsError as error:
        if first:
            raise
        yield event(json.dumps(error_of(500, str(error), error)))
