"""Outcomes of requests, in the words that the semantic conventions of OpenTelemetry have for HTTP and gRPC."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from starlette.requests import ClientDisconnect

from trims.core.errors import TrimsError
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.status import status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: HTTP's status of an answer that is not awaited any more, as nginx has it; it is not sent.
GONE = 499
#: gRPC's status for which a server is to blame: the others are the client's.
_OUR_FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")


class Outcome(NamedTuple):
    """Outcome of a request.

    Attributes:
        failed: Whether the server is to blame.
    """

    attributes: Mapping[str, Any]
    failed: bool


def http_outcome(error: BaseException | None) -> Outcome:
    """Return the outcome of a request over HTTP that ended with this error."""
    if error is None:
        return Outcome({"http.response.status_code": 200}, failed=False)
    status = 500 if isinstance(error, Exception) else GONE
    if isinstance(error, ClientDisconnect):
        status = GONE
    elif isinstance(error, TooLargeBodyError):
        status = 413
    elif isinstance(error, TrimsError):
        status = status_of(error)
    return Outcome({"http.response.status_code": status, "error.type": _type_of(error)}, failed=status >= 500)


def grpc_outcome(error: BaseException | None, code_of: Callable[[TrimsError], grpc.StatusCode]) -> Outcome:
    """Return the outcome of a request over gRPC that ended with this error."""
    if error is None:
        return Outcome({"rpc.grpc.status_code": 0}, failed=False)
    if isinstance(error, TrimsError):
        code = code_of(error)
    elif isinstance(error, TooLargeBodyError):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    else:
        code = grpc.StatusCode.UNKNOWN if isinstance(error, Exception) else grpc.StatusCode.CANCELLED
    number: int = code.value[0]
    attributes = {"rpc.grpc.status_code": number, "error.type": _type_of(error)}
    return Outcome(attributes, failed=code.name in _OUR_FAULTS)


def _type_of(error: BaseException) -> str:
    if isinstance(error, ClientDisconnect):  # as gRPC has it, whose server cancels such a request
        return CancelledError.__name__
    return error.code if isinstance(error, TrimsError) else type(error).__name__
