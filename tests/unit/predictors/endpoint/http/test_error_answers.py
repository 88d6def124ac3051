"""Errors of routes as answers: their status, what may be tried again, and nothing of the inside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi import Reply, call
from fastapi import APIRouter, FastAPI
from trims_predictors.endpoint.http.error_answers import add_error_answers

from trims.core.errors import BusyError, CallerError, DrainingError, PredictorError


def failing(error: Exception) -> FastAPI:
    """An application whose one route raises."""
    app = FastAPI()
    add_error_answers(app)

    @app.get("/it")
    async def it() -> None:
        raise error

    return app


def answer_to(error: Exception) -> Reply:
    async def run() -> Reply:
        return await call(failing(error), "GET", "/it", b"")

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [(CallerError("no"), 400, False), (BusyError("later"), 503, True), (PredictorError("broken"), 500, False)],
)
def test_errors_are_told_with_their_status(error: Exception, status: int, retry: bool) -> None:
    reply = answer_to(error)
    assert (reply.status, reply.json()) == (status, {"error": str(error)})
    assert ("retry-after" in reply.headers) == retry


def test_all_methods_of_a_path_are_allowed_whichever_routes_they_have() -> None:
    app, router = FastAPI(), APIRouter()
    add_error_answers(app)

    async def it() -> None:
        """Answer."""

    for method in ("GET", "POST"):
        router.add_api_route("/it", it, methods=[method])
    router.add_api_route("/other", it, methods=["DELETE"])
    app.include_router(router)
    asked, refused = (asyncio.run(call(app, method, "/it")) for method in ("OPTIONS", "PUT"))
    assert (asked.status, refused.status) == (200, 405)
    assert asked.headers["allow"] == refused.headers["allow"] == "GET, POST"


def test_an_endpoint_that_ends_closes_the_connection() -> None:
    assert answer_to(DrainingError("ends")).headers["connection"] == "close"


def test_a_bug_is_an_error_object_that_tells_nothing_of_the_inside() -> None:
    async def run() -> Reply:
        app = failing(ZeroDivisionError("secret"))

        async def keep(scope: Any, receive: Any, send: Any) -> None:
            with pytest.raises(ZeroDivisionError):  # the server logs it
                await app(scope, receive, send)

        return await call(keep, "GET", "/it", b"")

    reply = asyncio.run(run())
    assert reply.status == 500
    assert reply.json() == {"error": "a bug in trims: ZeroDivisionError; the endpoint's log has the story"}
