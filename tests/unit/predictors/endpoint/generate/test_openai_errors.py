"""Errors of OpenAI's API."""

from __future__ import annotations

import pytest
from trims_predictors.endpoint.generate.openai_errors import error_of, is_openai

from trims.core.errors import CallerError, ModelNotFoundError


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/models", True),
        ("/v1/models/m", True),
        ("/v1/embeddings", True),
        ("/v1/chat/completions", True),
        ("/openai/v1/completions", True),
        ("/openai/anything", True),
        ("/v1/evaluations", False),
        ("/v1/traces", False),
        ("/v2/models", False),
        ("/", False),
    ],
)
def test_paths_of_the_api_are_known(path: str, known: bool) -> None:
    assert is_openai(path) == known


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (413, "invalid_request_error"), (429, "rate_limit_error"), (500, "server_error"),
        (503, "server_error"),
    ],
)  # fmt: skip
def test_each_status_has_the_type_that_clients_know(status: int, kind: str) -> None:
    assert error_of(status, "why") == {"error": {"message": "why", "type": kind, "param": None, "code": None}}


def test_a_model_that_is_not_there_has_a_code_of_its_own() -> None:
    assert error_of(404, "why", ModelNotFoundError("why"))["error"]["code"] == "model_not_found"
    assert error_of(400, "why", CallerError("why"))["error"]["code"] == CallerError.code
