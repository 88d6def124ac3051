"""Evaluations over HTTP, below `/v1/evaluations`: ordered, watched, read, compared and removed; and recorded traces.

The operator's only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from trims_predictors.endpoint.bodies import read_object
from trims_predictors.endpoint.disconnects import unless_gone
from trims_predictors.endpoint.http.openapi import LISTED_TRACES

from trims.core.errors import CallerError
from trims_bench.evaluation.served.errands import Errands
from trims_bench.evaluation.served.orders import Evaluations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from trims_predictors.endpoint.settings import EndpointSettings

_PATH, _TRACES = "/v1/evaluations", "/v1/traces"
#: A report is a page of its own: nothing from elsewhere, and no script.
_REPORT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class EvaluationRoutes:
    """Evaluations of one endpoint's daemon. Satisfies `trims_predictors.endpoint.evaluations.MeasuringRoutes`.

    Args:
        settings: Where the daemon is, and where predictors run.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        named = ",".join(f"{framework}={python}" for framework, python in settings.environments.items())
        environments = [f"--environments={named}"] if named else []
        if settings.environments_dir is not None:
            environments.append(f"--environments-dir={settings.environments_dir}")
        self._evaluations = Evaluations(Errands([f"--runtime-dir={settings.pool.runtime_dir}"]), environments)

    def add_to(self, router: APIRouter, most_body_bytes: int) -> None:
        """Add the routes."""
        _add_evaluations(router, self._evaluations, most_body_bytes)
        _add_reports(router, self._evaluations)

    async def close(self) -> None:
        """End what is running; its samples are kept. Idempotent."""
        await self._evaluations.close()


def _add_evaluations(router: APIRouter, evaluations: Evaluations, most_body_bytes: int) -> None:

    @router.get(_PATH)
    async def listed(request: Request) -> Response:
        return await _answered(request, evaluations.listed(request.query_params.get("model", "")))

    @router.post(_PATH)
    async def begin(request: Request) -> Response:
        return JSONResponse(await evaluations.begin(await read_object(request, most_body_bytes)), 202)

    @router.get(_PATH + "/{evaluation}")
    async def read(request: Request, evaluation: str) -> Response:
        return await _answered(request, evaluations.read(evaluation))

    @router.delete(_PATH + "/{evaluation}")
    async def remove(request: Request, evaluation: str) -> Response:
        return await _answered(request, evaluations.remove(evaluation))


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(LISTED_TRACES))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise CallerError(f"the limit of traces is {text!r:.80}; it must be a number such as {LISTED_TRACES}")
    return int(text)


async def _answered(request: Request, work: Awaitable[Mapping[str, Any]]) -> Response:
    async def answer() -> Response:
        return JSONResponse(await work)

    return await unless_gone(request, answer())


def _add_reports(router: APIRouter, evaluations: Evaluations) -> None:
    @router.get(_PATH + "/{evaluation}/report")
    async def report(request: Request, evaluation: str) -> Response:
        async def page() -> Response:
            return Response(await evaluations.page(evaluation), media_type="text/html", headers=_REPORT_HEADERS)

        return await unless_gone(request, page())

    @router.get(_PATH + "/{evaluation}/explained/{other}")
    async def explained(request: Request, evaluation: str, other: str) -> Response:
        return await _answered(request, evaluations.explained(evaluation, other))

    @router.get(_TRACES)
    async def traces(request: Request) -> Response:
        return await _answered(request, evaluations.traces(_limit(request)))

    @router.get(_TRACES + "/{trace}")
    async def trace(request: Request, trace: str) -> Response:
        return await _answered(request, evaluations.trace(trace))
