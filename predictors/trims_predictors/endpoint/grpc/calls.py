"""Rules for every call over gRPC: who may call, how many at once, how large a message is, and errors as status.

Errors are status codes as at the daemon's control door (`trims.wire.status`), but a full queue is UNAVAILABLE, which
clients know to try again. Messages are read here and not by gRPC: it reports no error of that to a client, and has no
bound for messages that are small if they are right.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from trims.core.errors import BusyError, PermissionDeniedError, TrimsError
from trims.wire.status import status_of
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.extensions import why_no_method
from trims_predictors.endpoint.grpc.wire import not_protobuf
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.endpoint.observe.access_log import begin_call, call_ends
from trims_predictors.endpoint.principals import Principals, UnknownCallerError, caller
from trims_predictors.endpoint.status import RETRY_AFTER_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = grpc.RpcMethodHandler[Any, Any]

#: Methods that need no token and always have room.
_OPEN_METHODS = ("/ServerLive", "/ServerReady", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
#: Methods that take messages of any size as bytes.
_OF_INFERENCE = ("/ModelInfer", "/ModelStreamInfer")
#: Methods that always have room. ModelReady needs a token, since it names a model of its caller.
_OF_HEALTH = (*_OPEN_METHODS, "/ModelReady")
#: Calls of one caller at once; each holds its message. A stream is one call. Streams count apart, as most only wait.
MOST_CALLS = 1000
#: Letters of an error, at most: it travels in HTTP/2 headers, whose room is small.
_MOST_LETTERS = 1000
#: Milliseconds after which clients with a policy of retries may send a refused call again (gRFC A6).
_RETRY = (("grpc-retry-pushback-ms", str(RETRY_AFTER_S * 1000)),)
#: Seconds between two warnings that calls are refused.
_WARN_AGAIN_S = 60.0
#: Beginning of the names of metadata that ask for something of trims: there are none.
_PREFIX = "trims-"
_NEEDS_TOKEN = "this endpoint needs `authorization: Bearer TOKEN`"  # noqa: S105 - no token, but where it goes
_log = logging.getLogger(__name__)


class Calls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses calls without a token and calls too many, reads messages, and turns errors into status codes.

    Args:
        count: Counts an inference request that is refused before it is read.
        lines: Whether each call is a line of the log.
    """

    def __init__(self, callers: Principals, count: Callable[[TrimsError], None], *, lines: bool = False) -> None:
        self._lines = lines
        self._callers = callers
        self._count = count
        #: Calls that run, by tenant (empty for the operator) and whether they are streams.
        self._running: Counter[tuple[str, bool]] = Counter()
        self._warned_s = -_WARN_AGAIN_S

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        begin_call(dict(details.invocation_metadata or ()), details.method, lines=self._lines)
        handler = await continuation(details)
        if handler is None:
            return _refusing(grpc.StatusCode.UNIMPLEMENTED, why_no_method(details.method))
        if not details.method.endswith(_OPEN_METHODS) and not self._admits(details):
            return _refusing(grpc.StatusCode.UNAUTHENTICATED, _NEEDS_TOKEN)
        for name, _ in details.invocation_metadata or ():
            if name.startswith(_PREFIX):
                why = f"the metadata {name:.80} is not known here; over gRPC a request says such things in `parameters`"
                return _refusing(grpc.StatusCode.INVALID_ARGUMENT, why)
        if not details.method.endswith(_OF_HEALTH):
            tenant = caller()
            kind = "" if tenant is None else tenant.name, bool(handler.request_streaming)
            if self._running[kind] >= MOST_CALLS:
                return self._one_too_many(details.method)
            self._running[kind] += 1
            task = asyncio.current_task()
            assert task is not None
            # Each call has a task of its own, which goes on with the handler.
            task.add_done_callback(lambda _: self._ended(kind))
        if details.method.endswith(_OF_INFERENCE):
            return _of_bytes(handler, lambda: self._admits(details))
        return _of_small_messages(handler)

    def _admits(self, details: grpc.HandlerCallDetails) -> bool:
        given = dict(details.invocation_metadata or ()).get("authorization", "")
        try:
            self._callers.enter(str(given))
        except UnknownCallerError:
            return False
        return True

    def _ended(self, kind: tuple[str, bool]) -> None:
        self._running[kind] -= 1
        if not self._running[kind]:
            del self._running[kind]

    def _one_too_many(self, method: str) -> Handler:
        """Refuse a call before its message is read."""
        error = BusyError(f"the endpoint answers {MOST_CALLS} calls over gRPC at once, and as many run; try again")
        if time.monotonic() - self._warned_s >= _WARN_AGAIN_S:
            self._warned_s = time.monotonic()
            _log.warning("a call is refused: %s", error)
        if method.endswith(_OF_INFERENCE):
            self._count(error)
        return _refusing(code_of(error), str(error))


def _of_bytes(handler: Any, admits: Callable[[], bool]) -> Handler:
    """The handler with its requests as bytes, and with answers that are bytes already sent as they are.

    `admits` says whether the caller may ask, which is found out for each message of a stream.
    """
    write = handler.response_serializer
    if handler.response_streaming:
        stream = _with_status(handler.stream_stream)

        async def behaviour(requests: Any, context: Any) -> Any:
            return await stream(_admitted(requests, admits), context)

        return grpc.stream_stream_rpc_method_handler(behaviour, None, handler.response_serializer)
    return grpc.unary_unary_rpc_method_handler(
        _with_status(handler.unary_unary), None, lambda made: made if isinstance(made, bytes) else write(made)
    )


async def _admitted(requests: Any, admits: Callable[[], bool]) -> Any:
    """Yield a stream's messages. Raises PermissionDeniedError once the caller's token counts no more."""
    async for each in requests:
        if not admits():
            raise PermissionDeniedError("the token of this stream was revoked; begin another one with a new token")
        yield each


def _with_status(answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """The behaviour, with its errors as status codes."""

    async def behaviour(request: Any, context: Any) -> Any:
        try:
            return await answer(request, context)
        except TrimsError as error:
            refusal = code_of(error), str(error)
        except TooLargeBodyError as error:
            refusal = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
        # Not above: gRPC keeps the error of the abort, which would keep the other one, its frames and the message.
        del request
        return await _abort(context, *refusal)

    return behaviour


def _of_small_messages(handler: Any) -> Handler:
    """The handler of a method whose requests are small, however many bytes gRPC lets through."""
    read = handler.request_deserializer

    async def parsed(data: bytes, context: Any) -> Any:
        if len(data) > SMALL_BYTES:
            why = f"the request has {len(data)} bytes; {SMALL_BYTES} are the most for this method"
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        try:
            return read(data)
        except DecodeError:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(not_protobuf()))

    if handler.response_streaming:

        async def stream(data: bytes, context: Any) -> Any:
            async for each in handler.unary_stream(await parsed(data, context), context):
                yield each

        return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)

    async def answer(data: bytes, context: Any) -> Any:
        return await handler.unary_unary(await parsed(data, context), context)

    return grpc.unary_unary_rpc_method_handler(_with_status(answer), None, handler.response_serializer)


def _refusing(code: grpc.StatusCode, why: str) -> Handler:
    """A handler that answers before a message is read."""

    async def refuse(_: Any, context: Any) -> None:
        await _abort(context, code, why)

    return grpc.stream_unary_rpc_method_handler(refuse)


async def _abort(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    """End a call with a status, and with the time to try again where that helps."""
    call_ends(code.name)
    await context.abort(code, why[:_MOST_LETTERS], _RETRY if code is grpc.StatusCode.UNAVAILABLE else ())
    raise AssertionError("a call that was aborted goes on")


def code_of(error: TrimsError) -> grpc.StatusCode:
    """gRPC's status for an error."""
    return grpc.StatusCode.UNAVAILABLE if isinstance(error, BusyError) else status_of(error)
