"""Requests of one gRPC stream, served as they come: several at once, so that instances and batches serve it, too.

Answers are sent in the order of the requests, as Triton does for models with one answer to a request: clients pair
them so. Bounded are the requests that run at once and the bytes of answers that wait for the client or for an earlier
answer. Beyond either, nothing more is read from the stream, and HTTP/2's flow control stops its client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trims.core.errors import TrimsError
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.grpc import inference_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from trims_predictors.endpoint.grpc.wire import Received

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
        #: Tasks that make the answers, in the order of the requests; None once no request follows.
        self._answers: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()
        self._running: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._waiting_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Answer all requests. Raises BadMessageError for one that is no protobuf, once those before it are answered.

        When the wait for it is cancelled, the requests that run are cancelled, too.
        """
        reading = asyncio.ensure_future(self._read(requests))
        try:
            while (making := await self._answers.get()) is not None:
                made = await making
                await self._write(made)
                self._sent(made)
            await reading
        finally:
            tasks = {reading, *self._running}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _sent(self, made: Any) -> None:
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
                task = asyncio.ensure_future(self._run(received))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                self._answers.put_nowait(task)
        finally:
            self._answers.put_nowait(None)

    async def _run(self, received: Received) -> Any:
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
        return made
