"""Requests of one gRPC stream, served as they come: several at once, so that instances and batches serve it, too.

Answers are sent in the order of the requests, as Triton does for models with one answer to a request: clients pair
them so. A request for text whose input `stream` is true has many answers, one for each part. Bounded are the requests
that run at once and the bytes of answers that wait for the client or for an earlier answer. Beyond either, nothing more
is read from the stream, and HTTP/2's flow control stops its client.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import CapacityError, TrimsError
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.grpc import inference_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from trims_predictors.endpoint.grpc.wire import Received

    #: Takes a part of an answer, a ModelInferResponse.
    Part = Callable[[Any], None]

#: Requests of one stream that are answered at once, those included whose answers wait for the client.
MOST_AT_ONCE = 32
#: Bytes of answers that wait for the client; no further request is read while there are more.
MOST_WAITING_BYTES = 64 << 20
#: Seconds within which a client has to read an answer that waits for it: its other requests hold predictors.
READER_S = 30.0
#: Letters of an error.
_MOST_LETTERS = 1000
#: The parameter by which clients of Triton know the last answer to a request.
_FINAL = "triton_final_response"


class AnswerStream:
    """Answers the requests of one stream.

    Args:
        receive: Reads a request. Raises BadMessageError.
        answer: Makes the answer to a request, given what takes parts of it; None for an answer that was all parts.
        write: Sends an answer to the client, and returns when there is room for the next one.
    """

    def __init__(
        self,
        receive: Callable[[bytes], Received],
        answer: Callable[[Received, Part], Awaitable[Any]],
        write: Callable[[Any], Awaitable[None]],
    ) -> None:
        self._receive = receive
        self._answer = answer
        self._write = write
        #: Answers to each request as they are made, in the order of the requests; None once no request follows.
        self._answers: asyncio.Queue[_Answers | None] = asyncio.Queue()
        self._running: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._waiting_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Answer all requests. Raises BadMessageError for one that is no protobuf, once those before it are answered.

        Raises CapacityError for a client that does not read its answers.

        When the wait for it is cancelled, the requests that run are cancelled, too.
        """
        reading = asyncio.ensure_future(self._read(requests))
        try:
            while (answers := await self._answers.get()) is not None:
                while (made := await answers.next()) is not None:
                    await self._read_by_client(made)
                    self._sent(made)
                self._slots.release()
            await reading
        finally:
            tasks = {reading, *self._running}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read_by_client(self, made: Any) -> None:
        try:
            await asyncio.wait_for(self._write(made), READER_S)
        except asyncio.TimeoutError:
            raise CapacityError(f"the client has read nothing of its answers for {READER_S:g} s") from None

    def _sent(self, made: Any) -> None:
        self._waiting_bytes -= made.ByteSize()
        if self._waiting_bytes <= MOST_WAITING_BYTES:
            self._has_room.set()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for data in requests:
                received = self._receive(data)
                await self._slots.acquire()
                await self._has_room.wait()
                answers = _Answers(asyncio.Queue())
                answers.task = asyncio.ensure_future(self._run(received, answers))
                self._running.add(answers.task)
                answers.task.add_done_callback(self._running.discard)
                answers.task.add_done_callback(answers.end)
                self._answers.put_nowait(answers)
        finally:
            self._answers.put_nowait(None)

    async def _run(self, received: Received, answers: _Answers) -> None:
        """Answer one request: an error of the request is an answer, and a bug of ours ends the stream."""
        held: Any = None

        def part(response: Any) -> None:
            nonlocal held
            before, held = held, pb.ModelStreamInferResponse(infer_response=response)
            if before is not None:  # the last part is the one that says so, as with Triton
                before.infer_response.parameters[_FINAL].bool_param = False
                self._made(before, answers)

        made = pb.ModelStreamInferResponse()
        try:
            found = await self._answer(received, part)
            if found is not None:
                made.infer_response.CopyFrom(found)
        except (TrimsError, TooLargeBodyError) as error:
            found = made
            made.error_message = str(error)[:_MOST_LETTERS]
            made.infer_response.id = received.message.id
        if held is not None and found is not None:
            held.infer_response.parameters[_FINAL].bool_param = False
            self._made(held, answers)
        last = held if found is None and held is not None else made
        last.infer_response.parameters[_FINAL].bool_param = True
        self._made(last, answers)

    def _made(self, made: Any, answers: _Answers) -> None:
        self._waiting_bytes += made.ByteSize()
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._has_room.clear()
        answers.queue.put_nowait(made)


@dataclass(slots=True)
class _Answers:
    """Answers to one request: one, or the parts of a stream.

    Attributes:
        queue: Answers that wait; None after the last one.
        task: Makes them.
    """

    queue: asyncio.Queue[Any]
    task: asyncio.Task[None] | None = None

    def end(self, _: object) -> None:
        """Say that there are no more."""
        self.queue.put_nowait(None)

    async def next(self) -> Any:
        """Return the next answer; None after the last one. Raises what the task that makes them has raised."""
        found = await self.queue.get()
        if found is None and self.task is not None:
            await self.task
        return found
