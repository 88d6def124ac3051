"""The one place where errors become gRPC status and back. The error's code travels as trailing metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from trims.core.errors import (
    ArtifactNotFoundError,
    BrokenWeightsError,
    CallerError,
    CapacityError,
    DaemonAwayError,
    DeadlineError,
    InUseError,
    LostPeerError,
    ModelExistsError,
    ModelNotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    TensorNotFoundError,
    TrimsError,
    from_code,
)

if TYPE_CHECKING:
    from typing import NoReturn

CODE_KEY = "trims-code"
#: First match wins, so special classes come before general ones.
_STATUS: tuple[tuple[type[TrimsError], grpc.StatusCode], ...] = (
    (ModelNotFoundError, grpc.StatusCode.NOT_FOUND),
    (TensorNotFoundError, grpc.StatusCode.NOT_FOUND),
    (ArtifactNotFoundError, grpc.StatusCode.NOT_FOUND),
    (ModelExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (NotSupportedError, grpc.StatusCode.UNIMPLEMENTED),
    (InUseError, grpc.StatusCode.FAILED_PRECONDITION),
    (CallerError, grpc.StatusCode.INVALID_ARGUMENT),
    (CapacityError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (LostPeerError, grpc.StatusCode.UNAVAILABLE),
    (BrokenWeightsError, grpc.StatusCode.DATA_LOSS),
    (TrimsError, grpc.StatusCode.INTERNAL),
)
_MAX_DETAILS = 4000


def status_of(error: TrimsError) -> grpc.StatusCode:
    """gRPC's status for an error."""
    return next(status for cls, status in _STATUS if isinstance(error, cls))


def abort(context: grpc.ServicerContext, error: TrimsError) -> NoReturn:
    """End a call with an error."""
    context.set_trailing_metadata(((CODE_KEY, error.code),))
    context.abort(status_of(error), _fitting(str(error)))
    raise AssertionError("abort() does not return")


def _fitting(details: str) -> str:
    """Return a message that fits into gRPC's metadata, where each byte beyond ASCII takes three."""
    data = details.encode(errors="replace")
    most = _MAX_DETAILS if data.isascii() else _MAX_DETAILS // 3
    return data[:most].decode(errors="ignore")


def error_from(call: grpc.RpcError, address: str) -> TrimsError:
    """Return the error a failed call carries; a daemon that does not answer becomes DaemonAwayError."""
    assert isinstance(call, grpc.Call | grpc.aio.AioRpcError), "every RpcError of a finished call is one"
    trailers: dict[str, Any] = {item[0]: item[1] for item in tuple[Any, ...](call.trailing_metadata() or ())}
    code = trailers.get(CODE_KEY)
    details = call.details() or ""
    if code is not None:
        return from_code(str(code), details)
    if call.code() is grpc.StatusCode.UNAVAILABLE:
        return DaemonAwayError(f"no daemon answers at {address}; start one with `trims serve`")
    if call.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NotSupportedError(
            f"the daemon at {address} is of another release and lacks this; restart it by this one"
        )
    return from_code("internal", f"the call ended with {call.code().name}: {details}")
