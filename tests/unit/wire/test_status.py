"""Every error crosses both doors as what it is."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from trims.core.errors import (
    DaemonAwayError,
    InternalError,
    NotSupportedError,
    TrimsError,
    error_classes,
    from_code,
)
from trims.wire.status import abort, error_from, status_of

CLASSES = sorted(error_classes().values(), key=lambda cls: cls.code)


class Call(grpc.RpcError, grpc.Call):
    """Failed call as a client sees it."""

    def __init__(self, status: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str], ...] = ()) -> None:
        self._status, self._details, self._trailers = status, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailers

    def initial_metadata(self) -> Any: ...
    def is_active(self) -> bool: ...
    def time_remaining(self) -> float: ...
    def cancel(self) -> bool: ...
    def add_callback(self, callback: Any) -> bool: ...


class Context:
    """Context that a handler answers through; keeps what the client would see."""

    def set_trailing_metadata(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self.trailers = trailers

    def abort(self, status: grpc.StatusCode, details: str) -> None:
        raise Call(status, details, self.trailers)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_an_error_survives_the_control_door(cls: type[TrimsError]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        abort(Context(), cls("who and what"))  # type: ignore[arg-type]
    call = caught.value
    assert isinstance(call, Call)
    assert call.code() is status_of(cls("x")) is not grpc.StatusCode.UNKNOWN
    error = error_from(call, "/run/control.sock")
    assert type(error) is cls
    assert str(error) == "who and what"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("model_not_found", "NOT_FOUND"),
        ("model_exists", "ALREADY_EXISTS"),
        ("in_use", "FAILED_PRECONDITION"),
        ("bad_manifest", "INVALID_ARGUMENT"),
        ("not_supported", "UNIMPLEMENTED"),
        ("permission_denied", "PERMISSION_DENIED"),
        ("capacity", "RESOURCE_EXHAUSTED"),
        ("too_large", "RESOURCE_EXHAUSTED"),
        ("deadline", "DEADLINE_EXCEEDED"),
        ("draining", "UNAVAILABLE"),
        ("bad_artifact", "DATA_LOSS"),
        ("internal", "INTERNAL"),
    ],
)
def test_other_clients_see_the_status_grpc_has_for_it(code: str, status: str) -> None:
    assert status_of(from_code(code, "x")).name == status


def test_a_message_too_long_for_a_trailer_is_cut() -> None:
    with pytest.raises(grpc.RpcError) as caught:
        abort(Context(), InternalError("x" * 100_000))  # type: ignore[arg-type]
    assert len(caught.value.details()) == 4000  # type: ignore[attr-defined]


def test_a_daemon_that_is_away_is_named_by_address_and_remedy() -> None:
    error = error_from(Call(grpc.StatusCode.UNAVAILABLE, "connection refused"), "/run/control.sock")
    assert isinstance(error, DaemonAwayError)
    assert "/run/control.sock; start one with `trims serve`" in str(error)


def test_a_call_that_a_daemon_of_another_release_lacks_is_named_with_the_remedy() -> None:
    error = error_from(Call(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), "/run/control.sock")
    assert isinstance(error, NotSupportedError)
    assert "/run/control.sock is of another release" in str(error)


def test_a_status_of_something_else_is_an_internal_error_that_says_it() -> None:
    error = error_from(Call(grpc.StatusCode.UNKNOWN, "whatever"), "/run")
    assert isinstance(error, InternalError)
    assert "UNKNOWN: whatever" in str(error)
