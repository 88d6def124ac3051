"""Which route asks for what; real evaluations are in tests/e2e/test_evaluations_over_http.py."""

from __future__ import annotations

import asyncio
import importlib.metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from asgi import Reply, call
from fastapi import APIRouter, FastAPI
from trims_bench.evaluation.served import routes
from trims_predictors.deployment.deployment import Settings
from trims_predictors.endpoint.evaluations import MeasuringRoutes, NotInstalled, measuring_routes
from trims_predictors.endpoint.settings import EndpointSettings

from trims.core.errors import CallerError, NotOfferedError

if TYPE_CHECKING:
    from pathlib import Path


class Evaluations:
    """Answers with what it was asked."""

    def __getattr__(self, name: str) -> Any:
        async def asked(*given: object) -> Any:
            return "<p>page</p>" if name == "page" else {"name": name, "given": list(given)}

        return asked


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MeasuringRoutes:
    """Routes as an endpoint finds them."""
    monkeypatch.setattr(routes, "Evaluations", lambda *_: Evaluations())
    return measuring_routes(EndpointSettings(Settings(str(tmp_path))))


def ask(made: MeasuringRoutes, method: str, path: str, body: object = b"") -> Reply:
    app, router = FastAPI(), APIRouter()
    made.add_to(router, 1000)
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
def test_each_route_has_its_answer(made: MeasuringRoutes, method: str, path: str, name: str, given: list[str]) -> None:
    reply = ask(made, method, path)
    assert (reply.status, reply.json()) == (200, {"name": name, "given": given})


@pytest.mark.parametrize("limit", ["", "x", "-1", "1.5", "٣", "9" * 5000])
def test_a_limit_that_is_no_number_is_refused(made: MeasuringRoutes, limit: str) -> None:
    with pytest.raises(CallerError, match="must be a number"):
        ask(made, "GET", f"/v1/traces?limit={quote(limit)}")


def test_an_order_is_accepted_before_it_is_carried_out(made: MeasuringRoutes) -> None:
    reply = ask(made, "POST", "/v1/evaluations", {"model": "m"})
    assert (reply.status, reply.json()["given"]) == (202, [{"model": "m"}])


def test_a_report_is_a_page_that_may_run_nothing(made: MeasuringRoutes) -> None:
    reply = ask(made, "GET", "/v1/evaluations/1/report")
    assert (reply.status, reply.body) == (200, b"<p>page</p>")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script" not in policy


@pytest.mark.parametrize("path", ["/v1/evaluations", "/v1/evaluations/1/report", "/v1/traces/abc"])
def test_without_the_measuring_package_each_route_names_the_remedy(path: str) -> None:
    with pytest.raises(NotOfferedError, match="pip install"):
        ask(NotInstalled(), "GET", path)


def test_a_measuring_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = [importlib.metadata.EntryPoint("bench", "no_such_bench.routes:Routes", "trims.evaluations")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: there)
    made = measuring_routes(EndpointSettings(Settings(str(tmp_path))))
    with pytest.raises(NotOfferedError, match=r"cannot be imported \(No module named 'no_such_bench'\): pip install"):
        ask(made, "GET", "/v1/evaluations")
