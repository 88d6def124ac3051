"""Outcomes of an error over HTTP and over gRPC, in the words of the semantic conventions."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from starlette.requests import ClientDisconnect
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.grpc.service import code_of
from trims_predictors.endpoint.observe.outcomes import grpc_outcome, http_outcome

from trims.core.errors import BusyError, CallerError, DeadlineError, ModelNotFoundError, PredictorError


@pytest.mark.parametrize(
    ("error", "status", "kind", "failed"),
    [
        (ModelNotFoundError("m"), 404, "model_not_found", False),
        (CallerError("m"), 400, "bad_request", False),
        (TooLargeBodyError("m"), 413, "TooLargeBodyError", False),
        (asyncio.CancelledError(), 499, "CancelledError", False),
        (ClientDisconnect(), 499, "CancelledError", False),
        (BusyError("m"), 503, "busy", True),
        (PredictorError("m"), 500, "predictor", True),
        (KeyError("m"), 500, "KeyError", True),
    ],
)
def test_an_error_over_http_has_its_status(error: BaseException, status: int, kind: str, failed: bool) -> None:
    assert http_outcome(error) == ({"http.response.status_code": status, "error.type": kind}, failed)


@pytest.mark.parametrize(
    ("error", "code", "kind", "failed"),
    [
        (ModelNotFoundError("m"), grpc.StatusCode.NOT_FOUND, "model_not_found", False),
        (asyncio.CancelledError(), grpc.StatusCode.CANCELLED, "CancelledError", False),
        (BusyError("m"), grpc.StatusCode.UNAVAILABLE, "busy", True),
        (DeadlineError("m"), grpc.StatusCode.DEADLINE_EXCEEDED, "deadline", True),
        (KeyError("m"), grpc.StatusCode.UNKNOWN, "KeyError", True),
    ],
)
def test_an_error_over_grpc_has_its_code(error: BaseException, code: grpc.StatusCode, kind: str, failed: bool) -> None:
    assert grpc_outcome(error, code_of) == ({"rpc.grpc.status_code": code.value[0], "error.type": kind}, failed)


def test_an_answer_is_no_failure() -> None:
    assert http_outcome(None) == ({"http.response.status_code": 200}, False)
    assert grpc_outcome(None, code_of) == ({"rpc.grpc.status_code": 0}, False)
