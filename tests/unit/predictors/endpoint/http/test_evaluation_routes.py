"""Which route asks for what; real evaluations are in tests/e2e/test_evaluations_over_http.py."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from asgi import Reply, call
from fastapi import APIRouter, FastAPI
from trims_predictors.endpoint.http.evaluation_routes import add_evaluation_routes

from trims.core.errors import CallerError


class Evaluations:
    """Answers with what it was asked."""

    def __getattr__(self, name: str) -> Any:
        async def asked(*given: object) -> Any:
            return "<p>page</p>" if name == "page" else {"name": name, "given": list(given)}

        return asked


def ask(method: str, path: str, body: object = b"") -> Reply:
    app, router = FastAPI(), APIRouter()
    add_evaluation_routes(router, Evaluations(), 1000)  # type: ignore[arg-type]
    app.include_router(router)
    return asyncio.run(call(app, method, path, body))


@pytest.mark.parametrize(
    ("method", "path", "name", "given"),
    [
        ("GET", "/v1/evaluations", "listed", [""]),
        ("GET", "/v1/evaluations/1", "read", ["1"]),
        ("DELETE", "/v1/evaluations/1", "remove", ["1"]),
        ("GET", "/v1/evaluations/1/explained/2", "explained", ["1", "2"]),
        ("GET", "/v1/traces/abc", "trace", ["abc"]),
        ("GET", "/v1/traces", "traces", [50]),
        ("GET", "/v1/traces?limit=7", "traces", [7]),
    ],
)
def test_each_route_has_its_answer(method: str, path: str, name: str, given: list[str]) -> None:
    reply = ask(method, path)
    assert (reply.status, reply.json()) == (200, {"name": name, "given": given})


@pytest.mark.parametrize("limit", ["", "x", "-1", "1.5", "٣", "9" * 5000])
def test_a_limit_that_is_no_number_is_refused(limit: str) -> None:
    with pytest.raises(CallerError, match="must be a number"):
        ask("GET", f"/v1/traces?limit={quote(limit)}")


def test_an_order_is_accepted_before_it_is_carried_out() -> None:
    reply = ask("POST", "/v1/evaluations", {"model": "m"})
    assert (reply.status, reply.json()["given"]) == (202, [{"model": "m"}])


def test_a_report_is_a_page_that_may_run_nothing() -> None:
    reply = ask("GET", "/v1/evaluations/1/report")
    assert (reply.status, reply.body) == (200, b"<p>page</p>")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script" not in policy
