"""Extensions of the protocol that the endpoint does not offer, by the routes and methods that belong to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, NotOfferedError
from trims_predictors.endpoint.requests.request_limits import check_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Extension -> paths over HTTP after `/v2/` (`MODEL`: with and without a version), and methods over gRPC.
_ROUTES = {
    "cuda_shared_memory": r"cudasharedmemory(/.*)?",
    "trace": r"(MODEL/)?trace/setting",
    "logging": r"logging",
}
_METHODS = {
    "CudaSharedMemoryRegister": "cuda_shared_memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
_MODEL = r"models/[^/]+(/versions/[^/]+)?"
_PATHS = {name: re.compile("/v2/" + path.replace("MODEL", _MODEL)) for name, path in _ROUTES.items()}
_SERVICE = "/inference.GRPCInferenceService/"


def not_offered(extension: str) -> NotOfferedError:
    """The error for an extension that is not offered."""
    return NotOfferedError(f"the extension {extension} is not offered; docs/inference.md lists those that are")


def extension_of_path(path: str) -> str | None:
    """The extension that a path belongs to and that is not offered; None for any other path."""
    return next((name for name, pattern in _PATHS.items() if pattern.fullmatch(path)), None)


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Raise CallerError for a parameter of an order to unload that has no meaning: models have no dependents here."""
    check_fields(parameters, ("unload_dependents",), "the order to unload")


def check_repository(name: str) -> None:
    """Raise CallerError for a repository by its name: there is one, which has none."""
    if name:
        raise CallerError(f"there is no repository {name!r:.80}; leave the name out")


def why_no_method(method: str) -> str:
    """Return why a method over gRPC, such as `/package.Service/Method`, is not there."""
    extension = _METHODS.get(method.removeprefix(_SERVICE))
    if extension is not None:
        return str(not_offered(extension))
    return f"there is no method {method!r:.200}; docs/inference.md lists the extensions that are offered"
