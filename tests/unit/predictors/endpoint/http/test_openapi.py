"""The endpoint's OpenAPI document: every route is in it. Requests made from it are in tests/e2e/test_endpoint.py."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route
from trims_bench.evaluation.served.routes import EvaluationRoutes
from trims_predictors.deployment.deployment import Settings
from trims_predictors.endpoint.http.app import build_app
from trims_predictors.endpoint.http.openapi import SCHEMAS, document, is_open
from trims_predictors.endpoint.settings import EndpointSettings


def operations(stated: Any) -> set[tuple[str, str]]:
    return {(path, method) for path, methods in stated["paths"].items() for method in methods}


def routes() -> set[tuple[str, str]]:
    service: Any = SimpleNamespace()
    settings = EndpointSettings(Settings("/nowhere"))
    app = build_app(service, most_body_bytes=1, token=None, loopback=True, evaluations=EvaluationRoutes(settings))
    assert app.openapi() == document(token=False)
    found = [each for each in _all(app.routes) if each.include_in_schema]
    return {(each.path, method.lower()) for each in found for method in each.methods or ()}


def _all(given: Any) -> list[Route]:
    """Also those of routers that were included."""
    found: list[Route] = []
    for each in given:
        inner = getattr(each, "original_router", None)
        found += [each] if isinstance(each, Route) else _all(inner.routes) if inner is not None else []
    return found


def test_every_route_is_in_the_document_and_no_other() -> None:
    assert operations(document(token=False)) == routes()


def test_every_schema_that_is_named_is_there_and_every_one_there_is_named() -> None:
    named = set(re.findall(r"#/components/schemas/(\w+)", str(document(token=False))))
    assert named == set(SCHEMAS)


@pytest.mark.parametrize("token", [True, False])
def test_a_token_is_stated_where_it_is_needed(token: bool) -> None:
    stated = document(token=token)
    assert ("security" in stated) == token
    for path, methods in stated["paths"].items():
        for operation in methods.values():
            assert ("401" in operation["responses"]) == (token and not is_open(path))


def test_a_version_in_a_path_is_a_parameter_of_it() -> None:
    for path, methods in document(token=False)["paths"].items():
        for operation in methods.values():
            names = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
            assert names == set(re.findall(r"{(\w+)}", path))


@pytest.mark.parametrize(
    ("path", "without_token"),
    [
        ("/", True),
        ("/v2/health/live", True),
        ("/ui/files/app.js", True),
        ("/ui/state", False),
        ("//", False),
        ("", False),
    ],
)
def test_only_probes_and_the_files_of_the_page_need_no_token(path: str, without_token: bool) -> None:
    assert is_open(path) == without_token
