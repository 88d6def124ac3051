"""The process that reads and writes large JSON for the endpoint, and counts the elements of large BYTES tensors.

It also makes the bytes of tensors whose elements came one by one in a large message of gRPC, reads and writes what
belongs to OpenAI's API, and reads CloudEvents in structured mode.

Whatever does that in C keeps Python's lock, so a thread of the endpoint would hold up all others. This process has no
thread, no descriptor of the endpoint's but its own socket, and memory in proportion to what it is given.

A job is a message of FRAME (what to do, bytes of the head) and two memfds: one holds the head, which is JSON, and what
is worked on; into the other go the head and the data of the answer, whose message has one of DONE, REFUSED, TOO_LARGE.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import resource
import socket
import struct
import sys
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims.manifests.serving import ITEM_BYTES
from trims.process.lifeline import depend_on
from trims_predictors.endpoint.json.requests import shrink, to_json
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.tensors import Tensor, join_bytes, split_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    Head = dict[str, Any]
    Done = tuple[Head, Iterator[bytes | memoryview]]

FRAME = struct.Struct("<BQ")
#: Jobs.
READ, WRITE, COUNT, PACK, READ_OPENAI, WRITE_OPENAI, READ_EVENT = range(7)
#: Ends of jobs.
DONE, REFUSED, TOO_LARGE = range(3)
#: Memory for this process itself, and for each byte that it is given: a short text takes 20 times what it is in JSON.
_OWN_BYTES = 256 << 20
_BYTES_A_BYTE = 32
#: Bytes of an answer in JSON, at most.
MOST_TEXT_BYTES = 1 << 30
#: Elements that are written at once.
_PIECE = 1 << 16
#: Characters of an error: names out of a request may be of any length.
_MOST_LETTERS = 1000


def read(head: Head, data: memoryview) -> Done:
    """The JSON of a request without its tensors, and their bytes."""
    del head
    text, sizes, blobs = shrink(bytes(data))
    return {"text": text.decode(), "sizes": sizes}, iter(blobs)


def write(head: Head, data: memoryview) -> Done:
    """The values of tensors as lists in JSON, with the bytes of each before all of them."""
    texts = []
    for tensor in _tensors(head, data):
        texts.append(b"".join(_text_of(tensor)))
        if sum(map(len, texts)) > MOST_TEXT_BYTES:
            raise MemoryError
    return {"sizes": list(map(len, texts))}, iter(texts)


def count(head: Head, data: memoryview) -> Done:
    """Check that each tensor has as many elements as its shape says. Return an empty result."""
    for tensor in _tensors(head, data):
        tensor.check()
    return {}, iter(())


def pack(head: Head, data: memoryview) -> Done:
    """The bytes of tensors whose elements came over gRPC, each as an InferTensorContents, and how many they are."""
    from trims_predictors.endpoint.grpc.requests import pack_contents  # other jobs do without protobuf

    made = []
    for given in _tensors(head, data):
        made.append(pack_contents(given.name, given.dtype, bytes(given.data)))
        Tensor(given.name, given.dtype, given.shape, made[-1]).check()
    return {"sizes": list(map(len, made))}, iter(made)


def read_openai(head: Head, data: memoryview) -> Done:
    """A request of OpenAI's API without the data of its inputs, and that data."""
    from trims_predictors.endpoint.generate.openai_requests import read_request

    request = read_request(head["route"], bytes(data))
    described = [(each.name, each.dtype, each.shape, each.nbytes) for each in request.inputs]
    return {"request": request._replace(inputs=[]), "inputs": described}, iter([each.data for each in request.inputs])


def write_openai(head: Head, data: memoryview) -> Done:
    """The items of an answer of OpenAI's API, with commas between them."""
    from trims_predictors.endpoint.generate.openai_answers import write_items

    text = b",".join(write_items(head["form"], head["facts"], list(_tensors(head, data))))
    if len(text) > MOST_TEXT_BYTES:
        raise MemoryError
    return {}, iter([text])


def read_event(head: Head, data: memoryview) -> Done:
    """A CloudEvent in structured mode: its attributes and the kind of its data, and the data."""
    from trims_client.events import structured_event

    del head
    event = structured_event(data)
    return {"attributes": event.attributes, "kind": event.kind}, iter([event.data])


def _tensors(head: Head, data: memoryview) -> Iterator[Tensor]:
    for name, dtype, shape, nbytes in head["tensors"]:
        yield Tensor(name, dtype, tuple(shape), data[:nbytes])
        data = data[nbytes:]


def _text_of(tensor: Tensor) -> Iterator[bytes]:
    """The JSON of a tensor's values, flat and row-major, in pieces."""
    before = b"["
    for values in _values(tensor):
        yield before + json.dumps(values, separators=(",", ":")).encode()[1:-1]
        before = b","
    yield b"]" if before == b"," else b"[]"


def _values(tensor: Tensor) -> Iterator[list[Any]]:
    for piece in _elements_of(tensor) if tensor.dtype == "BYTES" else _numbers_of(tensor):
        yield to_json(piece)


def _numbers_of(tensor: Tensor) -> Iterator[Tensor]:
    step, data = _PIECE * (ITEM_BYTES[tensor.dtype] or 1), memoryview(tensor.data)
    for at in range(0, len(data), step):
        yield Tensor(tensor.name, tensor.dtype, (), data[at : at + step])


def _elements_of(tensor: Tensor) -> Iterator[Tensor]:
    elements = iter(split_bytes(tensor.name, tensor.data, prod(tensor.shape)))
    while piece := list(islice(elements, _PIECE)):
        yield Tensor(tensor.name, tensor.dtype, (len(piece),), join_bytes(piece))


_DO = {
    READ: read, WRITE: write, COUNT: count, PACK: pack, READ_OPENAI: read_openai, WRITE_OPENAI: write_openai,
    READ_EVENT: read_event,
}  # fmt: skip


def main() -> None:
    """Carry out jobs until the endpoint ends. Arguments: socket, lifeline."""
    own, lifeline = int(sys.argv[1]), int(sys.argv[2])
    depend_on(lifeline)
    gc.disable()  # there are no cycles in JSON, and looking for them takes half of the time
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # rather this process than the endpoint
    with socket.socket(fileno=own) as sock:
        while (message := socket.recv_fds(sock, FRAME.size, 2))[0]:
            given, made = message[1]
            what, head_bytes = FRAME.unpack(message[0])
            try:
                answer = FRAME.pack(*_carry_out(what, head_bytes, given, made))
            finally:
                os.close(given)
                os.close(made)
            sock.send(answer)


def _carry_out(what: int, head_bytes: int, given: int, made: int) -> tuple[int, int]:
    """Carry out a job; return how it ended, and the bytes of its answer's head."""
    total = os.fstat(given).st_size
    _limit(total)
    try:
        view = memoryview(mmap.mmap(given, total, prot=mmap.PROT_READ))
        head, parts = _DO[what](json.loads(view[:head_bytes].tobytes()), view[head_bytes:])
        return DONE, _put(made, json.dumps(head).encode(), parts)
    except CallerError as error:
        return REFUSED, _put(made, str(error)[:_MOST_LETTERS].encode(errors="backslashreplace"), iter(()))
    except MemoryError:
        return TOO_LARGE, 0


def _put(made: int, head: bytes, parts: Iterator[bytes | memoryview]) -> int:
    with open(made, "wb", buffering=0, closefd=False) as file:
        for part in (head, *parts):
            view = memoryview(part).cast("B")
            while len(view):
                view = view[file.write(view) :]
    return len(head)


def _limit(nbytes: int) -> None:
    """Take no more memory than `nbytes` of text may need."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = _OWN_BYTES + _BYTES_A_BYTE * max(nbytes, SMALL_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
