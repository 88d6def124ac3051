"""OpenAI's API over HTTP: models, embeddings, completions and chat, for the programs that speak it.

Paths are those of OpenAI, `/v1/...`, and of KServe, `/openai/v1/...`. `json.openai_requests` says which fields of a
request are followed; all others are refused.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, TrimsError
from trims_predictors.endpoint.bodies import read_body
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.generate.generation import GENERATED
from trims_predictors.endpoint.generate.openai_answers import CHAT_PART, COMPLETION_PART
from trims_predictors.endpoint.generate.openai_errors import FOLDERS, error_of
from trims_predictors.endpoint.generate.openai_requests import CHAT, COMPLETIONS, EMBEDDINGS
from trims_predictors.endpoint.http.event_streams import event, event_stream
from trims_predictors.endpoint.http.large_responses import packed_response
from trims_predictors.endpoint.json.requests import dump
from trims_predictors.endpoint.observe.tracing import http_span
from trims_predictors.endpoint.principals import caller_name
from trims_predictors.endpoint.requests.infer_request import InferRequest, Wanted
from trims_predictors.endpoint.requests.part_streams import parts_of
from trims_predictors.tensors import to_array

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from fastapi import APIRouter, Request, Response

    from trims_predictors.deployment.deployment import Answer, Deployment
    from trims_predictors.endpoint.generate.openai_requests import TextRequest
    from trims_predictors.endpoint.json.workers import JsonWorkers
    from trims_predictors.endpoint.observe.metrics import Counting
    from trims_predictors.endpoint.observe.tracing import RequestSpan
    from trims_predictors.endpoint.requests.part_streams import OnPart
    from trims_predictors.endpoint.service import Service
    from trims_predictors.tensors import Tensor

_COUNTS = (GENERATED, "finish_reason", "prompt_tokens", "completion_tokens")
_DONE = event(b"[DONE]")
#: Route -> form of a streamed part, beginning of the answer's id, and its kind, whole and in parts.
_FORMS = {
    COMPLETIONS: (COMPLETION_PART, "cmpl", "text_completion", "text_completion"),
    CHAT: (CHAT_PART, "chatcmpl", "chat.completion", "chat.completion.chunk"),
}


def add_openai_routes(router: APIRouter, service: Service, most_body_bytes: int, workers: JsonWorkers) -> None:
    """Add the routes."""
    for folder in FOLDERS:
        _add_model_routes(router, service, folder)
        for route, answer in ((EMBEDDINGS, _embeddings), (COMPLETIONS, _generate), (CHAT, _generate)):
            path = f"{folder}/{route}"
            router.add_route(path, _route(service, workers, path, most_body_bytes, answer), methods=["POST"])


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
        workers: Write what is large.
        route: One of the API's routes.
        counting: Takes the answer, to count it.
        span: Span of the request; None for none.
        lasting: Ends with the response.
    """

    service: Service
    workers: JsonWorkers
    route: str
    request: Request
    asked: TextRequest
    counting: Counting
    span: RequestSpan | None
    lasting: contextlib.ExitStack

    async def run(self, wanted: tuple[str, ...], on_part: OnPart | None = None) -> tuple[Deployment, Answer]:
        """Return the model's answer with these outputs, and who gave it."""
        asked = InferRequest(self.asked.inputs, wanted={name: Wanted() for name in wanted})
        found = await self.service.run(self.asked.model, "", asked, on_part=on_part, span=self.span)
        self.counting.answer = found[1]
        return found

    async def items(self, form: str, facts: Mapping[str, Any], tensors: list[Tensor]) -> bytes | memoryview:
        """Return the JSON of an answer's items, which another process writes if they are large."""
        return await self.workers.write_openai(caller_name(), form, facts, tensors)


def _route(
    service: Service,
    workers: JsonWorkers,
    path: str,
    most_body_bytes: int,
    answer: Callable[[_Call], Awaitable[Response]],
) -> Any:
    route = path.partition("/v1/")[2]

    async def call(request: Request) -> Response:
        asked = await workers.read_openai(caller_name(), route, await read_body(request, most_body_bytes))
        with contextlib.ExitStack() as lasting:
            counting = lasting.enter_context(service.metrics.request(asked.model, "http"))
            span = lasting.enter_context(http_span(service.exporter, request, path, asked.model))
            if asked.trouble:
                raise CallerError(asked.trouble)
            return await answer(_Call(service, workers, route, request, asked, counting, span, lasting))

    return call


async def _embeddings(call: _Call) -> Response:
    async def embedded() -> Response:
        found = _by_name(await call.run(("embedding", "prompt_tokens")))
        items = await call.items(EMBEDDINGS, {"base64": call.asked.as_base64}, [found["embedding"]])
        tokens = int(to_array(found["prompt_tokens"]).sum())
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return await _response({"object": "list", "model": call.asked.model, "usage": usage}, "data", items)

    return await unless_gone(call.request, embedded())


def _by_name(found: tuple[Deployment, Answer]) -> dict[str, Tensor]:
    return {each.name: each for each in found[1].outputs}


async def _response(head: Mapping[str, Any], name: str, items: bytes | memoryview) -> Response:
    return await packed_response(_object(head, name, items))


def _object(head: Mapping[str, Any], name: str, items: bytes | memoryview) -> list[bytes | memoryview]:
    """Return an object in JSON, in parts: its fields, and its one list."""
    return [dump(head)[:-1], f',"{name}":['.encode(), items, b"]}"]


async def _generate(call: _Call) -> Response:
    """Answer with text, whole or in parts."""
    _, prefix, whole_kind, part_kind = _FORMS[call.route]
    kind = part_kind if call.asked.streams else whole_kind
    made = {"object": kind, "created": int(time.time()), "model": call.asked.model}
    head = {"id": f"{prefix}-{secrets.token_hex(12)}", **made}
    if call.asked.streams:
        return await event_stream(call.request, _chunks(call, head), call.lasting)

    async def whole() -> Response:
        found = _by_name(await call.run(_COUNTS))
        items = await call.items(call.route, {}, [found[GENERATED], found["finish_reason"]])
        return await _response({**head, "usage": _usage(found)}, "choices", items)

    return await unless_gone(call.request, whole())


def _usage(found: Mapping[str, Tensor]) -> dict[str, int]:
    prompt, completion = (int(to_array(found[name]).sum()) for name in ("prompt_tokens", "completion_tokens"))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def _chunks(call: _Call, head: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield a chunk for each part, one that says why it ended, and one with the usage if that is asked for."""
    form, first = _FORMS[call.route][0], True
    with_usage = {"usage": None} if call.asked.with_usage else {}

    async def chunk(tensors: list[Tensor], reason: str | None) -> bytes:
        nonlocal first
        facts, first = {"first": first, "reason": reason}, False
        return event(b"".join(_object({**head, **with_usage}, "choices", await call.items(form, facts, tensors))))

    try:
        async with contextlib.aclosing(parts_of(lambda take: call.run(_COUNTS, take))) as parts:
            async for part in parts:
                if part.end is None:
                    yield await chunk([each for each in part.tensors if each.name == GENERATED], None)
                    continue
                found = _by_name(part.end)
                yield await chunk([], to_array(found["finish_reason"]).ravel()[0].decode())
                if call.asked.with_usage:
                    yield event(dump({**head, "choices": [], "usage": _usage(found)}))
        yield _DONE
    except TrimsError as error:
        if first:
            raise
        yield event(dump(error_of(500, str(error), error)))
