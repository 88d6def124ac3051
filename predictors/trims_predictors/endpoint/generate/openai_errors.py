"""Paths of OpenAI's API, and its form of errors."""

from __future__ import annotations

from typing import Any

from trims.core.errors import ModelNotFoundError

#: Folders of the API's paths: OpenAI's own, and KServe's.
FOLDERS = ("/v1", "/openai/v1")
_PATHS = frozenset(
    f"{folder}/{name}" for folder in FOLDERS for name in ("models", "embeddings", "completions", "chat/completions")
)
#: Paths of this endpoint's own in the same folder.
_OURS = ("/v1/evaluations", "/v1/traces")
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def is_openai(path: str) -> bool:
    """Return whether a path is one of this API, whose errors have a form of their own."""
    return path in _PATHS or path.startswith(("/openai/", "/v1/models/"))


def is_answered_as_openai(path: str) -> bool:
    """Return whether errors at a path have the form of this API: also where it has more than this endpoint offers."""
    return is_openai(path) or (path.startswith("/v1/") and not path.startswith(_OURS))


def error_of(status: int, message: str, error: Exception | None = None) -> dict[str, Any]:
    """Return an error as clients of OpenAI know it."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "model_not_found" if isinstance(error, ModelNotFoundError) else getattr(error, "code", None)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
