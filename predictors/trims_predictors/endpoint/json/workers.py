"""Large JSON of requests and answers, done by other processes, in turns of the callers.

Each caller, the operator or a tenant, has at most one of its jobs done at a time, and its others wait in its own line.
So a caller with large requests holds up itself, and others for one job at the most.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from trims_client.events import CloudEvent

from trims.core.errors import BusyError, CallerError
from trims.core.units import format_bytes
from trims.manifests.serving import ITEM_BYTES
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.generate.openai_answers import write_items
from trims_predictors.endpoint.generate.openai_requests import TextRequest, read_request
from trims_predictors.endpoint.json.child import (
    COUNT,
    PACK,
    READ,
    READ_EVENT,
    READ_OPENAI,
    WRITE,
    WRITE_OPENAI,
)
from trims_predictors.endpoint.json.process import JsonProcess, TooMuchWorkError
from trims_predictors.endpoint.json.requests import dump, json_end, parse_request, parse_shrunk, to_json
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_predictors.endpoint.json.process import Done
    from trims_predictors.endpoint.requests.infer_request import InferRequest

#: Jobs that are done at once.
_PROCESSES = 2
#: Seconds for one job.
_MOST_S = 60.0
#: Numbers that are written as JSON where they are: the worst take 5 ms.
_FEW_NUMBERS = 4096
#: Data types whose elements are looked at -> bytes of them that are looked at where they are, in a few milliseconds.
_LOOKED_AT_BYTES = {"BYTES": SMALL_BYTES, "BOOL": COPIED_AT_ONCE_BYTES}
#: Requests of the largest size that may wait in a caller's line.
_MOST_WAITING = 4


@dataclass
class _Line:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting_bytes: int = 0


class JsonWorkers:
    """Reads and writes JSON: small JSON at once, large JSON in other processes."""

    def __init__(self, most_body_bytes: int = 256 << 20) -> None:
        self._processes = [JsonProcess() for _ in range(_PROCESSES)]
        self._idle = list(self._processes)
        self._free = asyncio.Semaphore(_PROCESSES)
        self._lines: dict[str, _Line] = {}
        self._most_waiting_bytes = _MOST_WAITING * most_body_bytes

    async def parse(self, whose: str, body: memoryview, header_length: str | None) -> InferRequest:
        """Read a request.

        Args:
            whose: Name of the tenant; empty for the operator.

        Raises CallerError as `parse_request` does, TooLargeBodyError for JSON that takes too much memory or time,
        BusyError if too much of the caller waits already, CapacityError if the process ended.
        """
        end = json_end(body, header_length)
        if end <= SMALL_BYTES:
            request = parse_request(body, header_length)
        else:
            try:
                done = await self._do(whose, READ, {}, [body[:end]])
            except TooMuchWorkError as error:
                raise _too_much(end, "send binary tensors") from error
            request = parse_shrunk(done.head["text"].encode(), done.head["sizes"], done.data, body[end:])
        await self.check(whose, request.inputs)
        return request

    async def read_openai(self, whose: str, route: str, body: memoryview) -> TextRequest:
        """Read a request of OpenAI's API; see `read_request`. Raises as it does, and as `parse`."""
        if len(body) <= SMALL_BYTES:
            return read_request(route, bytes(body))
        try:
            done = await self._do(whose, READ_OPENAI, {"route": route}, [body])
        except TooMuchWorkError as error:
            raise _too_much(len(body), "send less in one request") from error
        request, data = TextRequest(*done.head["request"]), done.data
        for name, dtype, shape, nbytes in done.head["inputs"]:
            request.inputs.append(Tensor(name, dtype, tuple(shape), data[:nbytes], checked=True))
            data = data[nbytes:]
        return request

    async def read_event(self, whose: str, body: memoryview) -> CloudEvent:
        """Read a large CloudEvent in structured mode; see `structured_event`. Raises as it does, and as `parse`."""
        try:
            done = await self._do(whose, READ_EVENT, {}, [body])
        except TooMuchWorkError as error:
            raise _too_much(len(body), "send it in binary mode") from error
        return CloudEvent(done.head["attributes"], done.head["kind"], done.data)

    async def write_openai(
        self, whose: str, form: str, facts: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> bytes | memoryview:
        """Return the items of an answer of OpenAI's API; see `write_items`. Raises as `write`."""
        if sum(map(_weight, tensors)) <= 1.0:
            return b",".join(write_items(form, facts, tensors))
        head = {"form": form, "facts": facts, **_described(tensors)}
        try:
            return (await self._do(whose, WRITE_OPENAI, head, [each.data for each in tensors])).data
        except TooMuchWorkError as error:
            raise CallerError("the answer is too large for JSON; ask for less in one request") from error

    async def pack(self, whose: str, tensors: list[Tensor], contents: Mapping[int, Sequence[memoryview]]) -> None:
        """Replace tensors by those whose data is made of elements that came one by one over gRPC. Raises as `parse`.

        Args:
            whose: Name of the tenant; empty for the operator.
            tensors: The inputs of a request.
            contents: Index of an input -> its InferTensorContents, as bytes in pieces.
        """
        if not contents:
            return
        places = list(contents)
        sizes = [sum(piece.nbytes for piece in contents[index]) for index in places]
        head = {"tensors": [(*_description(tensors[at]), size) for at, size in zip(places, sizes, strict=True)]}
        pieces = [piece for index in places for piece in contents[index]]
        try:
            done = await self._do(whose, PACK, head, pieces)
        except TooMuchWorkError as error:
            raise TooLargeBodyError(
                f"{format_bytes(sum(sizes))} of elements take too much memory, or longer than {_MOST_S:.0f} s; send "
                "raw_input_contents"
            ) from error
        data = done.data
        for index, size in zip(places, done.head["sizes"], strict=True):
            tensors[index] = replace(tensors[index], data=data[:size], checked=True)
            data = data[size:]

    async def check(self, whose: str, tensors: list[Tensor]) -> None:
        """Have tensors checked whose elements are looked at one by one, if they are large. Raises CallerError.

        They are replaced by tensors that are checked. Small ones are checked later, where they are.
        """
        places = _too_much_to_check(tensors)
        large = [tensors[index] for index in places]
        if not large:
            return
        try:
            await self._do(whose, COUNT, _described(large), [each.data for each in large])
        except TooMuchWorkError as error:
            raise TooLargeBodyError(f"the request's BYTES take longer than {_MOST_S:.0f} s to count") from error
        for index, each in zip(places, large, strict=True):
            tensors[index] = replace(each, checked=True)

    async def write(self, whose: str, tensors: Sequence[Tensor]) -> list[memoryview] | None:
        """The values of outputs as JSON; None if they are few, and may as well be written where they are.

        Raises CallerError if JSON cannot hold them, or not within the memory and time for that; BusyError and
        CapacityError as `parse` does.
        """
        if sum(map(_weight, tensors)) <= 1.0:
            return None
        try:
            done = await self._do(whose, WRITE, _described(tensors), [each.data for each in tensors])
        except TooMuchWorkError as error:
            raise CallerError("the outputs are too large for JSON; ask for them with binary_data: true") from error
        texts, at = [], 0
        for size in done.head["sizes"]:
            texts.append(done.data[at : at + size])
            at += size
        return texts

    async def write_values(self, whose: str, tensors: Sequence[Tensor]) -> list[bytes | memoryview]:
        """Return the JSON of each tensor: a list, or the one element that it has. Raises as `write`."""
        texts: Sequence[bytes | memoryview] | None = await self.write(whose, tensors)
        if texts is None:
            texts = [dump(to_json(each)) for each in tensors]
        return [text[1:-1] if prod(each.shape) == 1 else text for text, each in zip(texts, tensors, strict=True)]

    async def _do(self, whose: str, what: int, head: dict[str, Any], data: Sequence[bytes | memoryview]) -> Done:
        line = self._lines.setdefault(whose, _Line())
        nbytes = sum(memoryview(each).nbytes for each in data)
        if line.waiting_bytes and line.waiting_bytes + nbytes > self._most_waiting_bytes:
            raise BusyError(
                f"{format_bytes(line.waiting_bytes)} of requests and answers in JSON wait already, the most for "
                "this --max-body; send binary tensors"
            )
        line.waiting_bytes += nbytes
        try:
            async with line.turn, self._free:
                process = self._idle.pop()
                try:
                    return await process.do(what, head, data, _MOST_S)
                finally:
                    self._idle.append(process)
        finally:
            line.waiting_bytes -= nbytes

    async def close(self) -> None:
        """End the processes. Jobs must have ended; idempotent."""
        for each in self._processes:
            await each.close()


def _too_much(nbytes: int, instead: str) -> TooLargeBodyError:
    return TooLargeBodyError(
        f"{format_bytes(nbytes)} of JSON take too much memory, or longer than {_MOST_S:.0f} s; {instead}"
    )


def _too_much_to_check(tensors: Sequence[Tensor]) -> list[int]:
    """Indices of the largest tensors, without which the others are checked where they are."""
    work = list(map(_check_work, tensors))
    left, found = sum(work), []
    for index in sorted(range(len(work)), key=work.__getitem__, reverse=True):
        if left <= 1.0:
            break
        left -= work[index]
        found.append(index)
    return found


def _check_work(tensor: Tensor) -> float:
    """Return the cost of looking at all elements of a tensor, as a part of the work that is done at once."""
    if tensor.checked:
        return 0.0
    return tensor.nbytes / _LOOKED_AT_BYTES.get(tensor.dtype, float("inf"))


def _described(tensors: Sequence[Tensor]) -> dict[str, Any]:
    return {"tensors": [(*_description(each), each.nbytes) for each in tensors]}


def _description(tensor: Tensor) -> tuple[str, str, tuple[int, ...]]:
    return tensor.name, tensor.dtype, tensor.shape


def _weight(tensor: Tensor) -> float:
    """Return the cost of writing a tensor, as a part of the work that is done at once."""
    item = ITEM_BYTES[tensor.dtype]
    return tensor.nbytes / SMALL_BYTES if item is None else tensor.nbytes / item / _FEW_NUMBERS
