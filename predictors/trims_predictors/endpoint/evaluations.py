"""Evaluations over HTTP, as far as the endpoint knows them: another package has them, found by an entry point."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING, Protocol

from trims.core.errors import NotOfferedError
from trims.process.packages import install_words

if TYPE_CHECKING:
    from fastapi import APIRouter, Response

    from trims_predictors.endpoint.settings import EndpointSettings

_log = logging.getLogger(__name__)
#: Group of entry points; the first that is found serves.
GROUP = "trims.evaluations"
#: Methods and paths that are answered with the remedy where no package measures.
_METHODS, _PATHS = ["GET", "POST", "DELETE"], ("/v1/evaluations", "/v1/traces")


class MeasuringRoutes(Protocol):
    """Routes of a package that measures, below `/v1/evaluations` and `/v1/traces`."""

    def add_to(self, router: APIRouter, most_body_bytes: int) -> None:
        """Add the routes; larger bodies are refused."""

    async def close(self) -> None:
        """End what is running. Idempotent."""


class NotInstalled:
    """Routes where no package measures: each request is refused with the remedy.

    Args:
        why: The end of a sentence.
    """

    def __init__(self, why: str = "which is not installed") -> None:
        self._why = why

    def add_to(self, router: APIRouter, most_body_bytes: int) -> None:  # noqa: ARG002
        """Add the routes."""

        async def refuse() -> Response:
            raise NotOfferedError(
                f"evaluations need the package that measures, {self._why}: {install_words('trims[eval]')}"
            )

        for path in _PATHS:
            router.add_api_route(path, refuse, methods=_METHODS)
            router.add_api_route(path + "/{rest:path}", refuse, methods=_METHODS, include_in_schema=False)

    async def close(self) -> None:
        """Do nothing."""


def measuring_routes(settings: EndpointSettings) -> MeasuringRoutes:
    """Return the routes of the package that measures, or those that name it."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            made: MeasuringRoutes = entry.load()(settings)
        except ImportError as error:
            _log.warning("there are no evaluations: %s cannot be imported: %s", entry.value, error)
            return NotInstalled(f"which cannot be imported ({error})")
        return made
    return NotInstalled()
