"""Requests in the log: an id for each of them, and a line for each if the operator wants it.

The id is what a client sent as `X-Request-Id`, else the trace id of its `traceparent`, else made here. It comes back in
the answer's header of that name, and log lines that are about the request name it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from trims.logs import about, begin_about
from trims.trace.context import trace_of
from trims_predictors.trace_context import TRACEPARENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "x-request-id"
_log = logging.getLogger(__name__)
_GIVEN = re.compile(r"[\w.:@/+=-]{1,128}\Z", re.ASCII)
#: Status of this task's call: one name, in a list because the task's callback sees it, too.
_status: ContextVar[list[str] | None] = ContextVar("trims_grpc_status", default=None)
#: Letters of a path in a line of the log, at most.
_MOST_LETTERS = 500


def request_id(given: str, traceparent: str) -> str:
    """Return the id of a request, from what its client said of it; empty text where it said nothing."""
    if _GIVEN.match(given):
        return given
    return trace_of(traceparent) or secrets.token_hex(8)


class RequestLog:
    """Gives each request over HTTP its id, and logs it if that is wanted. An ASGI application round another.

    Args:
        lines: Whether each request is a line of the log.
    """

    def __init__(self, app: ASGIApp, *, lines: bool) -> None:
        self._app = app
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"x-request-id", b"traceparent"):
                said[name] = b"" if name in said else value  # two of them say nothing
        given, traced = said.get(b"x-request-id", b""), said.get(b"traceparent", b"")
        number, seen = request_id(given.decode("latin-1"), traced.decode("latin-1")), _Seen()

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", number.encode())]
            elif message["type"] == "http.response.body":
                seen.nbytes += len(message.get("body", b""))
            await send(message)

        with about(request=number, **_model_of(scope["path"])):
            try:
                await self._app(scope, receive, send_on)
            finally:
                if self._lines:
                    _log_http(scope, seen)


class _Seen:
    """Status, size and start time of the response to a request."""

    __slots__ = ("began_s", "nbytes", "status")

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self.status = 0
        self.nbytes = 0


def _model_of(path: str) -> dict[str, str]:
    if path.startswith("/functions/"):
        rest = path.removeprefix("/functions/")
    else:
        rest = path.partition("/models/")[2] if path.startswith("/v2/") else ""
    name = unquote(rest.partition("/")[0])
    return {"model": name[:_MOST_LETTERS]} if name else {}


def _log_http(scope: Scope, seen: _Seen) -> None:
    taken_s = time.perf_counter() - seen.began_s
    client, path = (scope.get("client") or ("-",))[0], scope["path"][:_MOST_LETTERS]
    shown = path if path.isprintable() else ascii(path)
    status = seen.status or "no answer"
    facts = {"client": client, "method": scope["method"], "path": path, "status": seen.status, "nbytes": seen.nbytes}
    _log.info(
        "%s %s %s %s in %.1f ms, %d bytes", client, scope["method"], shown, status, taken_s * 1000, seen.nbytes,
        extra={"facts": {**facts, "duration_s": round(taken_s, 6)}},
    )  # fmt: skip


def begin_call(metadata: Mapping[str, Any], method: str, *, lines: bool) -> None:
    """Give a call over gRPC its id. Called in the task of the call, which is about it until its end.

    Args:
        method: Such as `/inference.GRPCInferenceService/ModelInfer`.
        lines: Whether to log the call once it has ended.
    """
    begin_about(request=request_id(str(metadata.get(REQUEST_ID, "")), str(metadata.get(TRACEPARENT, ""))))
    task = asyncio.current_task()
    if lines and task is not None:
        began_s, status = time.perf_counter(), ["OK"]
        _status.set(status)
        task.add_done_callback(lambda ended: _log_grpc(ended, method, status[0], time.perf_counter() - began_s))


def call_ends(status: str) -> None:
    """Note how the call of this task ends, if not well: the name of its status."""
    if (noted := _status.get()) is not None:
        noted[0] = status


def _log_grpc(ended: asyncio.Task[Any], method: str, status: str, taken_s: float) -> None:
    if ended.cancelled():
        status = "CANCELLED"
    facts = {"method": method, "status": status, "duration_s": round(taken_s, 6)}
    _log.info("grpc %s %s in %.1f ms", method[:_MOST_LETTERS], status, taken_s * 1000, extra={"facts": facts})
