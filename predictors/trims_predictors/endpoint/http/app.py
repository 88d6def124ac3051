"""The Open Inference Protocol over HTTP, as a FastAPI application.

Routes are those of the protocol, with and without a version, and of the extensions in `service.EXTENSIONS`. Errors are
`{"error": message}` with the status of `status`. The web page has its routes in `page_routes`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

import trims
from trims.core.errors import CallerError
from trims.manifests.serving import ANY, ANY_RANK
from trims_predictors.endpoint.bodies import accepted_coding, read_body, read_object
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.evaluations import MeasuringRoutes, NotInstalled
from trims_predictors.endpoint.extensions import check_unload
from trims_predictors.endpoint.http.error_answers import add_error_answers
from trims_predictors.endpoint.http.function_routes import add_function_routes
from trims_predictors.endpoint.http.generate_routes import add_generate_routes
from trims_predictors.endpoint.http.guard import Guard
from trims_predictors.endpoint.http.large_responses import packed_response
from trims_predictors.endpoint.http.openai_routes import add_openai_routes
from trims_predictors.endpoint.http.openapi import document
from trims_predictors.endpoint.http.page_routes import add_page_routes
from trims_predictors.endpoint.json.requests import HEADER_LENGTH, write_answer
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.observe.tracing import http_span
from trims_predictors.endpoint.principals import Principals, caller_name
from trims_predictors.endpoint.requests.infer_request import InferRequest
from trims_predictors.endpoint.requests.request_limits import check_fields
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES, Tensor, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from trims.manifests.serving import TensorType
    from trims_predictors.endpoint.observe.metrics import Counting
    from trims_predictors.endpoint.observe.tracing import RequestSpan
    from trims_predictors.endpoint.service import Service


# Raw binary requests over HTTP: the body is the data of a model's one input (Triton's `extension_binary_data.md`).

#: The length of the JSON that such a request states in its header: it has none.
NO_JSON = "0"


def raw_request(body: memoryview, inputs: Sequence[TensorType], *, batches: bool, model: str) -> InferRequest:
    """A request whose body is the data of the model's one input, and nothing else. Raises CallerError.

    The shape is that of the input, with as many elements in its one variable dimension as the body has. A body for
    BYTES is its one element, without a length before it.

    Args:
        inputs: Model's inputs, as far as they are known.
        batches: Whether the first dimension is that of a batch: of one row then.
    """
    if len(inputs) != 1:
        known = f"has {len(inputs)} inputs" if inputs else "has not told its inputs yet"
        raise CallerError(f"{model!r} {known}, and a raw binary request is for one input; name the inputs in JSON")
    name, dtype, shape = inputs[0].name, inputs[0].dtype, list(inputs[0].shape)
    if shape == [ANY_RANK]:
        raise CallerError(f"the graph of {model!r} states no shape for the input {name!r}; state it in JSON")
    if batches and shape:
        shape[0] = 1
    if dtype == "BYTES":
        shape = [1 if length == ANY else length for length in shape]
        if prod(shape) != 1:
            raise CallerError(f"the input {name!r} has the shape {shape}; a raw binary request brings one element")
        data = b"".join((len(body).to_bytes(4, "little"), body))
        return InferRequest([Tensor(name, dtype, tuple(shape), data, checked=True)])
    if shape.count(ANY) > 1:
        raise CallerError(f"the input {name!r} has the shape {shape}; a raw binary request leaves one length open")
    row = nbytes_of(name, dtype, [1 if length == ANY else length for length in shape]) or 1
    shape = [len(body) // row if length == ANY else length for length in shape]
    if nbytes_of(name, dtype, shape) != len(body):
        raise CallerError(
            f"the body has {len(body)} bytes; the input {name!r}, {dtype} of shape {list(inputs[0].shape)} (-1: any), "
            f"has {'a multiple of ' if ANY in inputs[0].shape else ''}{row}"
        )
    return InferRequest([Tensor(name, dtype, tuple(shape), body)])


def build_app(
    service: Service,
    *,
    most_body_bytes: int,
    token: str | None,
    loopback: bool,
    callers: Principals | None = None,
    workers: JsonWorkers | None = None,
    evaluations: MeasuringRoutes | None = None,
) -> FastAPI:
    """The application.

    Args:
        most_body_bytes: Larger requests are refused.
        token: Bearer token that every request must bring but those for what `is_open`; None for none.
        loopback: Whether it listens on this machine only: then requests for other hosts' names are refused.
        callers: Principals that may ask; None for any that brings the token.
        workers: Read and write large JSON; their maker closes them. None where no JSON is large.
        evaluations: Routes of the package that measures; their maker closes them. None refuses all of them.
    """
    app = FastAPI(title="trims inference endpoint", version=trims.__version__, docs_url=None, redoc_url=None)
    stated = document(token=token is not None)
    app.openapi = lambda: stated  # type: ignore[method-assign]  # as FastAPI's documentation has it
    router = _router(service, most_body_bytes, workers or JsonWorkers(most_body_bytes), has_token=token is not None)
    (evaluations or NotInstalled()).add_to(router, most_body_bytes)
    app.include_router(router)
    add_error_answers(app)
    app.add_middleware(Guard, callers=callers or Principals(token), loopback=loopback)
    return app


class _RouteWithHead(APIRoute):
    """A route that is asked for its head wherever it is asked for all: the server leaves the body out."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, methods: Any = None, **given: Any) -> None:
        named = set(methods or ("GET",))
        super().__init__(path, endpoint, methods=named | ({"HEAD"} if "GET" in named else set()), **given)


def _router(service: Service, most_body_bytes: int, workers: JsonWorkers, *, has_token: bool) -> APIRouter:
    router = APIRouter(route_class=_RouteWithHead)
    _add_infer_routes(router, service, most_body_bytes, workers)  # first: routes are tried in order
    add_generate_routes(router, service, most_body_bytes, workers)
    add_openai_routes(router, service, most_body_bytes, workers)
    add_function_routes(router, service, most_body_bytes, workers)
    _add_server_routes(router, service)
    _add_model_routes(router, service)
    _add_repository_routes(router, service, most_body_bytes)
    _add_shared_memory_routes(router, service, most_body_bytes)
    add_page_routes(router, service, most_body_bytes, has_token=has_token)
    return router


def _add_server_routes(router: APIRouter, service: Service) -> None:
    @router.get("/v2")
    @router.get("/v2/", include_in_schema=False)
    async def server_metadata() -> dict[str, Any]:
        return service.metadata()

    @router.get("/v2/health/live")
    @router.options("/v2/health/live", include_in_schema=False)  # HAProxy's check unless configured otherwise
    async def live() -> dict[str, bool]:
        return {"live": True, "ready": service.was_ready}  # found last: a daemon that hangs must not hold this up

    @router.get("/v2/health/ready")
    @router.options("/v2/health/ready", include_in_schema=False)
    async def ready() -> JSONResponse:
        found = await service.is_ready()
        return JSONResponse({"live": True, "ready": found}, 200 if found else 503)

    @router.get("/v2/models")
    async def models() -> dict[str, list[str]]:
        return {"models": list(dict.fromkeys(model.name for model in await service.models()))}

    @router.get("/state")
    async def state() -> dict[str, Any]:
        return service.pool.report()

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await service.metrics_page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @router.get("/v2/models/stats")
    async def all_statistics() -> dict[str, Any]:
        return {"model_stats": await service.statistics()}


def _add_infer_routes(router: APIRouter, service: Service, most_body_bytes: int, workers: JsonWorkers) -> None:
    """Routes of Starlette's, because FastAPI would look at each request's parameters once more, for longer."""
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        router.add_route(path, _infer_route(service, path, most_body_bytes, workers), methods=["POST"])


def _infer_route(
    service: Service, path: str, most_body_bytes: int, workers: JsonWorkers
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def infer(request: Request) -> Response:
        model, version = request.path_params["model"], request.path_params.get("version", "")
        with (
            service.metrics.request(model, "http") as counting,
            http_span(service.exporter, request, path, model) as span,
        ):
            body = await read_body(request, most_body_bytes)
            work = _infer(service, workers, request, body, model, version=version, counting=counting, span=span)
            answer = await unless_gone(request, work)
            if span is not None:
                span.set_status(answer.status_code)
            return answer

    return infer


def _add_model_routes(router: APIRouter, service: Service) -> None:
    @router.get("/v2/models/{model}")
    @router.get("/v2/models/{model}/versions/{version}")
    async def metadata(model: str, version: str = "") -> dict[str, Any]:
        return await service.describe(model, version)

    @router.get("/v2/models/{model}/ready")
    @router.get("/v2/models/{model}/versions/{version}/ready")
    async def model_ready(model: str, version: str = "") -> JSONResponse:
        reason = await service.why_not_ready(model, version)
        if reason:
            return JSONResponse({"name": model, "ready": False, "reason": reason}, 503)
        return JSONResponse({"name": model, "ready": True})

    @router.get("/v2/models/{model}/config")
    @router.get("/v2/models/{model}/versions/{version}/config")
    async def configuration(model: str, version: str = "") -> dict[str, Any]:
        return await service.configuration(model, version)

    @router.get("/v2/models/{model}/stats")
    @router.get("/v2/models/{model}/versions/{version}/stats")
    async def statistics(model: str, version: str = "") -> dict[str, Any]:
        return {"model_stats": await service.statistics(model, version)}


async def _infer(
    service: Service,
    workers: JsonWorkers,
    request: Request,
    body: memoryview,
    model: str,
    *,
    version: str,
    counting: Counting,
    span: RequestSpan | None,
) -> Response:
    header_length = _header_length(request)
    coding = accepted_coding(request)  # refused before the model has run in vain
    whose = caller_name()
    if raw := header_length == NO_JSON:
        inputs, batches = await service.inputs_of(model, version)
        read = partial(raw_request, body, inputs, batches=batches, model=model)
        asked = await asyncio.to_thread(read) if len(body) > COPIED_AT_ONCE_BYTES else read()
        await workers.check(whose, asked.inputs)
    else:
        asked = await workers.parse(whose, body, header_length)
    if asked.model not in (None, model):
        raise CallerError(f"the request is for {model!r:.80} by its path and for {asked.model!r:.80} by its model_name")
    with service.shared_memory.lend(asked) as shared:
        if await shared.fill(asked):
            await workers.check(whose, asked.inputs)
        deployment, answer, outputs = await service.infer(model, version, asked, shared, binary=raw, span=span)
    texts = await workers.write(whose, [each.tensor for each in outputs if each.in_json])
    parts, json_length = write_answer(asked, answer, deployment.model, deployment.version, outputs, written=texts)
    counting.answer = answer
    if json_length is None:
        return await packed_response(parts, coding)
    return await packed_response(parts, coding, "application/octet-stream", {HEADER_LENGTH: str(json_length)})


def _header_length(request: Request) -> str | None:
    """Return the stated length of a request's JSON before the binary tensors. Raises CallerError if two are stated."""
    stated = set(request.headers.getlist(HEADER_LENGTH))
    if len(stated) > 1:
        raise CallerError(f"the request has {len(stated)} headers Inference-Header-Content-Length; send one")
    return next(iter(stated), None)


def _add_repository_routes(router: APIRouter, service: Service, most_body_bytes: int) -> None:
    async def parameters(request: Request, *known: str) -> dict[str, Any]:
        message = await read_object(request, most_body_bytes)
        check_fields(message, known, "the request")
        for name, kind, text in (("ready", bool, "true or false"), ("parameters", dict, "an object")):
            if not isinstance(message.get(name, kind()), kind | None):
                raise CallerError(f"{name!r} must be {text}, not {message[name]!r:.80}")
        return message

    @router.post("/v2/repository/index")
    async def index(request: Request) -> list[dict[str, str]]:
        return await service.repository.index(ready=bool((await parameters(request, "ready")).get("ready")))

    @router.post("/v2/repository/models/{model}/load")
    async def load(request: Request, model: str) -> Response:
        given = (await parameters(request, "parameters")).get("parameters")
        if given:
            raise CallerError("a model is loaded as its manifest says; register it again with `trims add --replace`")

        async def loaded() -> Response:
            await service.repository.load(model)
            return JSONResponse({})

        return await unless_gone(request, loaded())

    @router.post("/v2/repository/models/{model}/unload")
    async def unload(request: Request, model: str) -> dict[str, Any]:
        check_unload((await parameters(request, "parameters")).get("parameters") or {})
        await service.repository.unload(model)
        return {}


def _add_shared_memory_routes(router: APIRouter, service: Service, most_body_bytes: int) -> None:
    """Routes of Triton's `extension_shared_memory.md`.

    No region of CUDA shared memory can be registered, so there is none; clients forget all before they begin.
    """

    async def nothing(request: Request) -> None:
        check_fields(await read_object(request, most_body_bytes), (), "the request")

    @router.get("/v2/cudasharedmemory/status")
    async def cuda_status() -> list[dict[str, Any]]:
        return []

    @router.post("/v2/cudasharedmemory/unregister")
    @router.post("/v2/cudasharedmemory/region/{name}/unregister")
    async def cuda_unregister(request: Request, name: str = "") -> dict[str, Any]:
        del name
        await nothing(request)
        return {}

    @router.get("/v2/systemsharedmemory/status")
    @router.get("/v2/systemsharedmemory/region/{name}/status")
    async def status(name: str = "") -> list[dict[str, Any]]:
        return service.shared_memory.status(name)

    @router.post("/v2/systemsharedmemory/region/{name}/register")
    async def register(request: Request, name: str) -> dict[str, Any]:
        message = await read_object(request, most_body_bytes)
        check_fields(message, ("key", "offset", "byte_size"), "the request")
        key, offset, nbytes = (message.get(field, 0) for field in ("key", "offset", "byte_size"))
        if not isinstance(key, str):
            raise CallerError(f"'key' must be the name of a shared memory object, not {key!r:.80}")
        for what, value in (("offset", offset), ("byte_size", nbytes)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise CallerError(f"{what!r} must be a whole number of bytes, not {value!r:.80}")
        await service.shared_memory.register(name, key, offset, nbytes)
        return {}

    @router.post("/v2/systemsharedmemory/unregister")
    @router.post("/v2/systemsharedmemory/region/{name}/unregister")
    async def unregister(request: Request, name: str = "") -> dict[str, Any]:
        await nothing(request)
        service.shared_memory.unregister(name)
        return {}
