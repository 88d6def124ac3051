"""Answers to requests that fail: `{"error": message}` with the status of `status`.

The answer of a function whose handler raised has the facts of that beside the message, as `raised`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from trims.core.errors import BusyError, DrainingError, PredictorError, TrimsError
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.extensions import extension_of_path, not_offered
from trims_predictors.endpoint.generate.openai_errors import error_of, is_answered_as_openai
from trims_predictors.endpoint.observe.outcomes import GONE
from trims_predictors.endpoint.status import RETRY_AFTER_S, status_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import FastAPI
    from starlette.routing import BaseRoute
    from starlette.types import Scope

_FUNCTIONS = "/functions/"
#: Messages that replace those of Starlette's own refusals.
_WORDS = {
    404: "there is nothing at {path}; GET /openapi.json lists what is there",
    405: "{method} is not taken at {path}; the header Allow says what is",
}


def add_error_answers(app: FastAPI) -> None:
    """Have an application answer every error that its routes raise."""
    app.add_exception_handler(TrimsError, _trims_error)
    app.add_exception_handler(TooLargeBodyError, _too_large)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)


def error_answer(request: Request, status: int, message: str, error: Exception | None = None) -> JSONResponse:
    """Return the answer to a request that fails, in the form of its protocol."""
    if is_answered_as_openai(request.scope["path"]):
        return JSONResponse(error_of(status, message, error), status)
    return JSONResponse({"error": message}, status)


async def _trims_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TrimsError)
    answer = error_answer(request, status_of(error), str(error), error)
    if isinstance(error, PredictorError) and error.raised and request.scope["path"].startswith(_FUNCTIONS):
        answer = JSONResponse({"error": str(error), "raised": error.raised.facts()}, answer.status_code)
    if isinstance(error, BusyError) or answer.status_code == 503:
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, DrainingError):
        answer.headers["Connection"] = "close"  # the next request must not meet the end of the connection
    return answer


async def _too_large(request: Request, error: Exception) -> Response:
    answer = error_answer(request, 413, str(error))
    answer.headers["Connection"] = "close"  # its body may go on without end
    return answer


async def _gone(_: Request, error: Exception) -> Response:
    """The client has hung up: no answer is read."""
    del error
    return Response(status_code=GONE)


async def _bug(request: Request, error: Exception) -> Response:
    return error_answer(request, 500, f"a bug in trims: {type(error).__name__}; the endpoint's log has the story")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # Starlette names the methods of the first route only that has the path
        headers["Allow"] = ", ".join(sorted(_methods(request.app.routes, request.scope)))
        if request.method == "OPTIONS":  # it asks which methods there are
            return Response(headers=headers)
    path = request.scope["path"]
    extension = extension_of_path(path) if error.status_code == 404 else None
    if extension is not None:
        return await _trims_error(request, not_offered(extension))
    made = error_answer(request, error.status_code, _WORDS.get(error.status_code, "{detail}").format(
        detail=error.detail, path=f"{path!r:.200}", method=request.method
    ))  # fmt: skip
    made.headers.update(headers)
    return made


def _methods(routes: Iterable[BaseRoute], scope: Scope) -> set[str]:
    """Return the methods of all routes that have the path of a request."""
    found: set[str] = set()
    for each in routes:
        inner = getattr(each, "original_router", None)  # of a router that was included
        if inner is not None:
            found |= _methods(inner.routes, scope)
        elif isinstance(each, Route) and each.matches(scope)[0] is not Match.NONE:
            found |= each.methods or set()
    return found
