"""The Open Inference Protocol over HTTP, as a FastAPI application.

Routes are those of the protocol, with and without a version, and of the extensions in `service.EXTENSIONS`. Errors are
`{"error": message}` with the status of `status`. The web page has its routes in `page_routes`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import trims
from trims.core.errors import BusyError, CallerError, DrainingError, TrimsError
from trims_predictors.endpoint.bodies import TooLargeBodyError, coding_for, pack, packs, read_body, read_object
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.extensions import check_unload, extension_of_path, not_offered
from trims_predictors.endpoint.http.large_responses import LargeResponse
from trims_predictors.endpoint.http.openapi import document, is_open
from trims_predictors.endpoint.http.page_routes import add_page_routes
from trims_predictors.endpoint.http.raw_requests import NO_JSON, raw_request
from trims_predictors.endpoint.json.requests import HEADER_LENGTH, write_answer
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.outcomes import GONE
from trims_predictors.endpoint.principals import Principals, UnknownCallerError, caller, may_ask_for
from trims_predictors.endpoint.request_limits import check_fields
from trims_predictors.endpoint.status import RETRY_AFTER_S, status_of
from trims_predictors.endpoint.tracing import http_span, recorded
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import ASGIApp, Receive, Scope, Send

    from trims.tenants import Tenants
    from trims_predictors.endpoint.metrics import Counting
    from trims_predictors.endpoint.otlp import RequestSpan
    from trims_predictors.endpoint.service import Service

#: Answers of more bytes are packed in a thread, and sent in pieces.
_LARGE_BYTES = 256 << 10
#: Hosts that a browser reaches this machine by. Another name in a request's Host is a page that had its own name point
#: here, to have the browser of a user of this machine send requests.
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
#: Methods that change nothing. Only these are taken from a browser that says another site's page is behind them.
_ONLY_READS = ("GET", "HEAD", "OPTIONS")
#: Messages that replace those of Starlette's own refusals.
_WORDS = {
    404: "there is nothing at {path}; GET /openapi.json lists what is there",
    405: "{method} is not taken at {path}; the header Allow says what is",
}
#: Values of Sec-Fetch-Site for requests of the endpoint's own page, and for requests that no page has made.
_OWN_PAGE = ("same-origin", "none")


def build_app(
    service: Service,
    *,
    most_body_bytes: int,
    token: str | None,
    loopback: bool,
    tenants: Tenants | None = None,
    workers: JsonWorkers | None = None,
) -> FastAPI:
    """The application.

    Args:
        service: What it offers.
        most_body_bytes: Larger requests are refused.
        token: Bearer token that every request must bring but those for what `is_open`; None for none.
        loopback: Whether it listens on this machine only: then requests for other hosts' names are refused.
        tenants: Those that have tokens of their own.
        workers: Read and write large JSON; their maker closes them. None where no JSON is large.
    """
    app = FastAPI(title="trims inference endpoint", version=trims.__version__, docs_url=None, redoc_url=None)
    stated = document(token=token is not None)
    app.openapi = lambda: stated  # type: ignore[method-assign]  # as FastAPI's documentation has it
    app.include_router(_router(service, most_body_bytes, workers or JsonWorkers(most_body_bytes)))
    app.add_exception_handler(TrimsError, _trims_error)
    app.add_exception_handler(TooLargeBodyError, _too_large)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(Guard, callers=Principals(token, tenants), loopback=loopback)
    return app


class Guard:
    """Lets requests pass that may be taken, and answers the others itself.

    Not a middleware of Starlette's own kind, which would put a queue and two tasks between each request and its answer.
    """

    def __init__(self, app: ASGIApp, callers: Principals, *, loopback: bool) -> None:
        self._app = app
        self._callers = callers
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        if refusal is not None and _may_be_large(Request(scope)):
            refusal.headers["Connection"] = "close"  # its body may go on without end
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        name, _, port = host.rpartition(":")
        known = (name in _LOOPBACK_HOSTS and port.isdecimal()) or host in _LOOPBACK_HOSTS
        if self._loopback and not known and ("host" in request.headers or _is_of_a_browser(request)):
            return _error(403, f"the endpoint listens on this machine only, and not as {host!r:.80}")
        if origin is not None and (not host or origin.partition("://")[2].lower() != host):
            return _error(403, f"requests from pages of {origin!r:.80} are not taken")
        if request.method not in _ONLY_READS and request.headers.get("sec-fetch-site", "none") not in _OWN_PAGE:
            return _error(403, "requests from pages of other sites are not taken")
        # Not `request.url.path`: older versions of Starlette make that from the header Host, too.
        return None if is_open(request.scope["path"]) else self._not_allowed(request)

    def _not_allowed(self, request: Request) -> Response | None:
        """The answer to a request that its caller may not make; None if it may."""
        path = request.scope["path"]
        try:
            tenant = self._callers.enter(request.headers.get("authorization", ""))
        except UnknownCallerError:
            refused = _error(401, "this endpoint needs `Authorization: Bearer TOKEN`")
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        if may_ask_for(tenant, path):
            return None
        return _error(403, f"{path!r:.80} is for the operator of this endpoint; tenants ask for what is under /v2")


def _is_of_a_browser(request: Request) -> bool:
    """Return whether a request may come from a page. Programs that name no host, such as HAProxy, lack such fields."""
    return any(name == "origin" or name.startswith("sec-fetch-") for name in request.headers)


def _may_be_large(request: Request) -> bool:
    """Return whether a request's body is more than comes with its head, or does not say."""
    stated = request.headers.get("content-length", "0")
    return "transfer-encoding" in request.headers or not stated.isdigit() or int(stated) > SMALL_BYTES


class _RouteWithHead(APIRoute):
    """A route that is asked for its head wherever it is asked for all: the server leaves the body out."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, methods: Any = None, **given: Any) -> None:
        named = set(methods or ("GET",))
        super().__init__(path, endpoint, methods=named | ({"HEAD"} if "GET" in named else set()), **given)


def _router(service: Service, most_body_bytes: int, workers: JsonWorkers) -> APIRouter:
    router = APIRouter(route_class=_RouteWithHead)
    _add_infer_routes(router, service, most_body_bytes, workers)  # first: routes are tried in order
    _add_server_routes(router, service)
    _add_model_routes(router, service)
    _add_repository_routes(router, service, most_body_bytes)
    _add_shared_memory_routes(router, service, most_body_bytes)
    add_page_routes(router, service, most_body_bytes)
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
        return {"models": [model.name for model in await service.models()]}

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
            recorded(request.headers.items(), f"POST {path}", model),
            http_span(service.tracing, request, path, model) as span,
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
    accepted = ",".join(request.headers.getlist("accept-encoding"))
    coding_for(accepted)  # refused before the model has run in vain
    tenant = caller()
    whose = "" if tenant is None else tenant.name
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
    return await _response(parts, json_length, accepted)


def _header_length(request: Request) -> str | None:
    """Return the stated length of a request's JSON before the binary tensors. Raises CallerError if two are stated."""
    stated = set(request.headers.getlist(HEADER_LENGTH))
    if len(stated) > 1:
        raise CallerError(f"the request has {len(stated)} headers Inference-Header-Content-Length; send one")
    return next(iter(stated), None)


async def _response(parts: list[bytes | memoryview], json_length: int | None, accepted: str) -> Response:
    """A body, packed if the client likes that."""
    headers = {} if json_length is None else {HEADER_LENGTH: str(json_length)}
    media_type = "application/json" if json_length is None else "application/octet-stream"
    encoding = None
    if sum(memoryview(part).nbytes for part in parts) <= _LARGE_BYTES:
        content, encoding = pack(b"".join(parts), accepted)
        parts = [content]
    elif packs(accepted):
        content, encoding = await asyncio.to_thread(lambda: pack(b"".join(parts), accepted))
        parts = [content]
    if encoding is not None:
        headers["Content-Encoding"] = encoding
    if len(parts) == 1 and len(parts[0]) <= _LARGE_BYTES:
        return Response(parts[0], media_type=media_type, headers=headers)
    return LargeResponse(parts, media_type, headers)


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
        return await service.index(ready=bool((await parameters(request, "ready")).get("ready")))

    @router.post("/v2/repository/models/{model}/load")
    async def load(request: Request, model: str) -> Response:
        given = (await parameters(request, "parameters")).get("parameters")
        if given:
            raise CallerError("a model is loaded as its manifest says; register it again with `trims add --replace`")

        async def loaded() -> Response:
            await service.load(model)
            return JSONResponse({})

        return await unless_gone(request, loaded())

    @router.post("/v2/repository/models/{model}/unload")
    async def unload(request: Request, model: str) -> dict[str, Any]:
        check_unload((await parameters(request, "parameters")).get("parameters") or {})
        await service.unload(model)
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


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


async def _trims_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, TrimsError)
    answer = _error(status_of(error), str(error))
    if isinstance(error, BusyError) or answer.status_code == 503:
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, DrainingError):
        answer.headers["Connection"] = "close"  # the next request must not meet the end of the connection
    return answer


async def _too_large(_: Request, error: Exception) -> Response:
    answer = _error(413, str(error))
    answer.headers["Connection"] = "close"  # its body may go on without end
    return answer


async def _gone(_: Request, error: Exception) -> Response:
    """The client has hung up before its request was whole: no answer is read."""
    del error
    return Response(status_code=GONE)


async def _bug(_: Request, error: Exception) -> Response:
    return _error(500, f"a bug in trims: {type(error).__name__}; the endpoint's log has the story")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and request.method == "OPTIONS":  # it asks which methods there are
        return Response(headers=error.headers)
    path = request.scope["path"]
    extension = extension_of_path(path) if error.status_code == 404 else None
    if extension is not None:
        return await _trims_error(request, not_offered(extension))
    made = _error(error.status_code, _WORDS.get(error.status_code, "{detail}").format(
        detail=error.detail, path=f"{path!r:.200}", method=request.method
    ))  # fmt: skip
    made.headers.update(error.headers or {})
    return made
