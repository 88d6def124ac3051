"""Triton's generate extension over HTTP: text in, text out, whole or as server-sent events."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import CallerError, TrimsError
from trims_predictors.endpoint.bodies import read_body
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.generate.generation import FULL_TEXT, GENERATED, TEXT_OUTPUT, request_of
from trims_predictors.endpoint.http.event_streams import event, event_stream
from trims_predictors.endpoint.http.large_responses import packed_response
from trims_predictors.endpoint.json.requests import dump
from trims_predictors.endpoint.json.text import SMALL_BYTES, load_json
from trims_predictors.endpoint.observe.tracing import http_span
from trims_predictors.endpoint.principals import caller_name
from trims_predictors.endpoint.requests.part_streams import parts_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from fastapi import APIRouter, Request, Response

    from trims_predictors.deployment.deployment import Answer, Deployment
    from trims_predictors.endpoint.json.workers import JsonWorkers
    from trims_predictors.endpoint.observe.metrics import Counting
    from trims_predictors.endpoint.requests.infer_request import InferRequest
    from trims_predictors.endpoint.service import Service
    from trims_predictors.tensors import Tensor

    #: Runs the request; `on_part` takes parts of its answer.
    Run = Callable[..., Awaitable[tuple[Deployment, Answer]]]

_NOT_INPUTS = ("id", "parameters", "stream")


def add_generate_routes(router: APIRouter, service: Service, most_body_bytes: int, workers: JsonWorkers) -> None:
    """Add the routes of the extension, with and without a version."""
    for version in ("", "/versions/{version}"):
        for ending, streams in (("generate", False), ("generate_stream", True)):
            path = f"/v2/models/{{model}}{version}/{ending}"
            router.add_route(path, _route(service, path, most_body_bytes, workers, streams=streams), methods=["POST"])


def _route(service: Service, path: str, most_body_bytes: int, workers: JsonWorkers, *, streams: bool) -> Any:
    async def generate(request: Request) -> Response:
        model, version = request.path_params["model"], request.path_params.get("version", "")
        with contextlib.ExitStack() as lasting:
            counting = lasting.enter_context(service.metrics.request(model, "http"))
            span = lasting.enter_context(http_span(service.exporter, request, path, model))
            asked = await _read(request, most_body_bytes, streams=streams)
            run = partial(service.run, model, version, asked, span=span)
            if streams:
                stated = (await service.deployment(model, version)).version
                return await event_stream(
                    request, _events(run, _Form(workers, model, stated, asked.id), counting), lasting
                )
            return await unless_gone(request, _answer(run, workers, asked, counting))

    return generate


async def _read(request: Request, most_body_bytes: int, *, streams: bool) -> InferRequest:
    """Return the request of a body: its fields, and those of `parameters`, are inputs of the model."""
    message = load_json(bytes(await read_body(request, min(most_body_bytes, SMALL_BYTES))))
    if not isinstance(message, dict):
        raise CallerError(f"the request must be an object, not {message!r:.80}")
    parameters = message.get("parameters")
    if not isinstance(parameters := {} if parameters is None else parameters, dict):
        raise CallerError(f"'parameters' must be an object, not {parameters!r:.80}")
    if message.get("stream", streams) is not streams:
        raise CallerError(
            "the path says whether the answer is streamed: `generate_stream` streams, `generate` does not"
        )
    twice = sorted(parameters.keys() & message.keys())
    if twice:
        raise CallerError(f"{twice[0]!r:.80} stands in the request and in its 'parameters'; say it once")
    fields = {name: value for name, value in {**parameters, **message}.items() if name not in _NOT_INPUTS}
    if not isinstance(request_id := message.get("id"), str | None):
        raise CallerError(f"'id' must be text, not {request_id!r:.80}")
    return request_of({FULL_TEXT: False, **fields}, request_id=request_id)


async def _answer(run: Run, workers: JsonWorkers, asked: InferRequest, counting: Counting) -> Response:
    deployment, answer = await run()
    counting.answer = answer
    form = _Form(workers, deployment.model, deployment.version, asked.id)
    return await packed_response(await form.write(answer.outputs))


async def _events(run: Run, form: _Form, counting: Counting) -> AsyncGenerator[bytes, None]:
    """Yield an event for each part; of a model that has no parts, one for its answer. An error is the last event."""
    sent = 0
    try:
        async with contextlib.aclosing(parts_of(lambda take: run(on_part=take))) as parts:
            async for part in parts:
                if part.end is not None:
                    counting.answer = part.end[1]
                if part.end is None or not sent:
                    sent += 1
                    yield event(b"".join(await form.write(part.tensors)))
    except TrimsError as error:
        if not sent:
            raise
        yield event(dump({"error": str(error)}))


class _Form(NamedTuple):
    """Form of the answers to one request.

    Attributes:
        workers: Write large values.
        request_id: Comes back; None for a request without.
    """

    workers: JsonWorkers
    model: str
    version: str
    request_id: str | None

    async def write(self, tensors: Sequence[Tensor]) -> list[bytes | memoryview]:
        """Return an answer in JSON, in parts: the names, and the value of each tensor."""
        named = {} if self.request_id is None else {"id": self.request_id}
        parts: list[bytes | memoryview] = [
            dump({**named, "model_name": self.model, "model_version": self.version})[:-1]
        ]
        for tensor, value in zip(tensors, await self.workers.write_values(caller_name(), tensors), strict=True):
            name = TEXT_OUTPUT if tensor.name == GENERATED else tensor.name
            parts += [b",", dump(name), b":", value]
        return [*parts, b"}"]
