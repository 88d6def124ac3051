"""Functions over HTTP: `POST /functions/NAME` with an event, JSON or a CloudEvent; `GET /functions`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from trims_client.events import cloud_event, is_structured, response_headers

from trims_predictors.endpoint.bodies import accepted_coding, read_body
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.functions import Functions, event_request
from trims_predictors.endpoint.http.large_responses import packed_response
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.endpoint.observe.tracing import http_span
from trims_predictors.endpoint.principals import caller_name
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES

if TYPE_CHECKING:
    from trims_client.events import CloudEvent

    from trims_predictors.endpoint.json.workers import JsonWorkers
    from trims_predictors.endpoint.observe.metrics import Counting
    from trims_predictors.endpoint.observe.tracing import RequestSpan
    from trims_predictors.endpoint.service import Service

PATH = "/functions"
_ROUTE = PATH + "/{function}"
_NO_CONTENT, _NULL = 204, b"null"


def add_function_routes(router: APIRouter, service: Service, most_body_bytes: int, workers: JsonWorkers) -> None:
    """Add the routes."""
    functions = Functions(service)

    @router.get(PATH)
    async def listed() -> dict[str, Any]:
        return {"functions": await functions.listed()}

    async def call(request: Request) -> Response:
        name = request.path_params["function"]
        with (
            service.metrics.request(name, "http") as counting,
            http_span(service.exporter, request, _ROUTE, name) as span,
        ):
            body = await read_body(request, most_body_bytes)
            work = _called(functions, workers, request, body, name, counting=counting, span=span)
            answer = await unless_gone(request, work)
            if span is not None:
                span.set_status(answer.status_code)
            return answer

    router.add_route(_ROUTE, call, methods=["POST"])


async def _cloud_event(workers: JsonWorkers, request: Request, body: memoryview) -> CloudEvent | None:
    """Return the CloudEvent that a request brings; None if it brings none. Raises as `cloud_event`."""
    if len(body) > SMALL_BYTES and is_structured(request.headers.items()):
        return await workers.read_event(caller_name(), body)
    return cloud_event(request.headers.items(), body)


async def _called(
    functions: Functions,
    workers: JsonWorkers,
    request: Request,
    body: memoryview,
    name: str,
    *,
    counting: Counting,
    span: RequestSpan | None,
) -> Response:
    coding = accepted_coding(request)  # refused before the function has run in vain
    event = await _cloud_event(workers, request, body)
    make = partial(event_request, event or body, request.headers.items())
    asked = await asyncio.to_thread(make) if len(body) > COPIED_AT_ONCE_BYTES else make()
    text, answer = await functions.call(name, asked, span)
    counting.answer = answer
    if event is None:
        return await packed_response([text], coding)
    if text.nbytes == len(_NULL) and text.tobytes() == _NULL:  # no event answers this one
        return Response(status_code=_NO_CONTENT)
    response = await packed_response([text], coding)
    response.headers.update(response_headers(event.attributes, name))
    return response
