"""The guard lets pass what may be taken, and answers the rest by itself."""

from __future__ import annotations

import asyncio

import pytest
from asgi import Reply, call
from starlette.responses import PlainTextResponse
from trims_predictors.endpoint.http.guard import Guard
from trims_predictors.endpoint.principals import Principals


def guarded(token: str | None, *, loopback: bool = True) -> Guard:
    """An application that answers everything it gets, behind the guard."""
    return Guard(PlainTextResponse("passed"), Principals(token, None), loopback=loopback)


def ask(method: str, path: str, token: str | None = None, **headers: str) -> Reply:
    async def run() -> Reply:
        return await call(guarded(token), method, path, b"", **headers)

    return asyncio.run(run())


def test_only_requests_with_the_token_are_taken_and_health_needs_none() -> None:
    assert ask("GET", "/v2", token="secret").status == 401
    assert ask("GET", "/v2", token="secret", authorization="Bearer wrong").status == 401
    assert ask("GET", "/v2", token="secret", authorization="secret").status == 401
    assert ask("GET", "/v2", token="secret", authorization="Bearer secret").status == 200
    assert ask("GET", "/v2/health/live", token="secret").status == 200
    assert ask("GET", "/v2", token="secret").headers["www-authenticate"] == "Bearer"


def test_a_host_that_looks_like_an_open_path_does_not_save_the_token() -> None:
    async def run() -> Reply:
        return await call(guarded("secret", loopback=False), "GET", "/v2", host="machine/v2/health/?")

    assert asyncio.run(run()).status == 401


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_changes_that_a_browser_says_come_from_another_site_are_refused(site: str) -> None:
    assert ask("POST", "/v2/repository/models/m/unload", sec_fetch_site=site).status == 403
    assert ask("GET", "/v2", sec_fetch_site=site).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", ""])
def test_a_page_that_points_its_name_at_this_machine_is_refused(host: str) -> None:
    assert ask("GET", "/v2", host=host).status == 403


@pytest.mark.parametrize("path", ["/", "/v2/health/ready", "/v2"])
def test_a_program_that_names_no_host_is_answered_and_a_page_is_not(path: str) -> None:
    def ask_without(**headers: str) -> int:
        async def run() -> Reply:
            return await call(guarded(None), "GET", path, b"", host=None, **headers)

        return asyncio.run(run()).status

    assert ask_without() == 200
    assert ask_without(origin="null") == 403
    assert ask_without(sec_fetch_site="none") == 403
    assert ask_without(sec_fetch_mode="navigate") == 403


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]"])
def test_names_of_this_machine_are_taken(host: str) -> None:
    assert ask("GET", "/v2", host=host).status == 200


def test_requests_from_pages_of_other_sites_are_refused() -> None:
    assert ask("POST", "/v2/repository/models/m/unload", origin="https://evil.example").status == 403
    assert ask("GET", "/v2", origin="http://localhost:8000").status == 200
    assert ask("GET", "/v2", host="LOCALHOST:8000", origin="http://localhost:8000").status == 200
    assert ask("GET", "/v2", host="", origin="null").status == 403


@pytest.mark.parametrize(
    ("headers", "closes"),
    [
        ({}, False), ({"content_length": "100"}, False), ({"content_length": "999999999"}, True),
        ({"transfer_encoding": "chunked"}, True),
    ],
)  # fmt: skip
def test_a_request_without_a_token_keeps_its_connection_only_if_its_body_is_small(
    headers: dict[str, str], closes: bool
) -> None:
    reply = ask("POST", "/v2/models/m/infer", token="secret", **headers)
    assert reply.status == 401
    assert ("connection" in reply.headers) == closes


@pytest.mark.parametrize(
    "path", ["/v2/models/m/infer", "/v1/completions", "/ui/models", "/functions", "/v2/health/live"]
)
def test_headers_of_ours_are_refused_where_nothing_takes_them(path: str) -> None:
    reply = ask("POST", path, trims_deadline="3")
    assert reply.status == 400
    assert "trims-deadline" in reply.body.decode()


def test_a_function_takes_the_headers_that_are_named_in_the_refusal_of_others() -> None:
    known = ("trims-deadline", "trims-keep-alive", "trims-priority", "trims-place")
    assert ask("POST", "/functions/f", **{each.replace("-", "_"): "1" for each in known}).status == 200
    refused = ask("POST", "/functions/f", trims_dead_line="1")
    assert refused.status == 400
    assert all(each in refused.body.decode() for each in ("trims-dead-line", *known))


@pytest.mark.parametrize("path", ["/v2/models/a\0b", f"/v2/models/{'a' * 5000}/infer", "/v1/evaluations/\0"])
def test_a_path_that_no_name_makes_is_refused(path: str) -> None:
    assert ask("GET", path).status == 400
