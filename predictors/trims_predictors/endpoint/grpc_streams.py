"""Requests of one gRPC stream, answered as they come: several at once, so that instances and batches serve it, too.

Bounded are the requests that run at once and the bytes of answers that the client has not taken yet. Beyond either,
nothing more is read from the stream, and HTTP/2's flow control stops its client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trims.core.errors import BadMessageError, TrimsError
from trims_predictors.endpoint import inference_pb2 as pb
from trims_predictors.endpoint.bodies import TooLargeBodyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from trims_predictors.endpoint.grpc_wire import Received

#: Requests of one stream that are answered at once, those included whose answers wait for the client.
MOST_AT_ONCE = 32
#: Bytes of answers that wait for the client; no further request is read while there are more.
MOST_WAITING_BYTES = 64 << 20
#: Letters of an error.
_MOST_LETTERS = 1000
#: The parameter by which clients of Triton know the last answer to a request; each request has one answer here.
_FINAL = "triton_final_response"


class AnswerStream:
    """Answers the requests of one stream.

    Args:
        receive: Reads a request. Raises BadMessageError.
        answer: Makes the answer to a request.
        write: Sends an answer to the client, and returns when there is room for the next one.
    """

    def __init__(
        self,
        receive: Callable[[bytes], Received],
        answer: Callable[[Received], Awaitable[Any]],
        write: Callable[[Any], Awaitable[None]],
    ) -> None:
        self._receive = receive
        self._answer = answer
        self._write = write
        #: Answers in the order in which they are ready, or what ends the stream at once; None: no request follows.
        self._ready: asyncio.Queue[Any] = asyncio.Queue()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._owed = self._waiting_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        #: Reads the stream, and answers its requests.
        self._tasks: set[asyncio.Task[None]] = set()
        #: Why no further request can be read.
        self._error: Exception | None = None

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Answer all requests. Raises BadMessageError for one that is no protobuf, once those before it are answered.

        When the wait for it is cancelled, the requests that run are cancelled, too.
        """
        self._start(self._read(requests))
        try:
            reads = True
            while reads or self._owed:
                made = await self._ready.get()
                if isinstance(made, BaseException):
                    raise made
                if made is None:
                    reads = False
                    continue
                await self._write(made)
                self._sent(made)
            if self._error is not None:
                raise self._error
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(tuple(self._tasks))

    def _sent(self, made: Any) -> None:
        self._owed -= 1
        self._waiting_bytes -= made.ByteSize()
        if self._waiting_bytes <= MOST_WAITING_BYTES:
            self._has_room.set()
        self._slots.release()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for data in requests:
                received = self._receive(data)
                await self._slots.acquire()
                await self._has_room.wait()
                self._owed += 1
                self._start(self._run(received))
        except BadMessageError as error:
            self._error = error
        finally:
            self._ready.put_nowait(None)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ready.put_nowait(error)

    async def _run(self, received: Received) -> None:
        """Answer one request: an error of the request is an answer, and a bug of ours ends the stream."""
        made = pb.ModelStreamInferResponse()
        try:
            made.infer_response.CopyFrom(await self._answer(received))
        except (TrimsError, TooLargeBodyError) as error:
            made.error_message = str(error)[:_MOST_LETTERS]
            made.infer_response.id = received.message.id
        made.infer_response.parameters[_FINAL].bool_param = True
        self._waiting_bytes += made.ByteSize()
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._has_room.clear()
        self._ready.put_nowait(made)
