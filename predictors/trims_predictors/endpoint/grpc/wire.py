"""A ModelInferRequest as it comes over gRPC: the data of its tensors is taken out before protobuf reads the rest.

The parser of protobuf makes objects of all parts of a message before any can be counted, and holds Python's lock
meanwhile: a million empty inputs fit into two megabytes. So a large message is first gone through field by field, up to
a number of fields, and only what is left without the data of its tensors is parsed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from trims.core.errors import BadMessageError
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.endpoint.requests.request_limits import MOST_PARAMETERS, MOST_TENSORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Fields of a large message, those of its inputs included. A field takes about a microsecond.
MOST_FIELDS = 8 * MOST_TENSORS
#: Wire types, as protobuf's encoding numbers them, and the bytes of those that have a fixed length.
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
#: Tags (number and wire type) of fields of ModelInferRequest, and of InferInputTensor.
_PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (number << 3 | _BYTES for number in (4, 5, 6, 7))
_CONTENTS = 5 << 3 | _BYTES
_KEPT = tuple(number << 3 | _BYTES for number in (1, 2, 3, 4, 6))
#: Repeated fields: how many there may be of each, and their names.
_MOST = {
    _PARAMETERS: (MOST_PARAMETERS, "parameters"), _INPUTS: (MOST_TENSORS, "inputs"),
    _OUTPUTS: (MOST_TENSORS, "requested outputs"), _RAW: (MOST_TENSORS, "raw_input_contents"),
}  # fmt: skip
#: Bits of a varint.
_MOST_BITS = 70


class Received(NamedTuple):
    """A message, parsed but for large data of its tensors.

    Attributes:
        raw: Message's `raw_input_contents`.
        contents: Index of an input -> its `contents`, as bytes in pieces, if those of all inputs together are large.
        trouble: Why it is refused: it has too many parts, and the message only those before. Empty if it has not.
    """

    message: Any
    raw: Sequence[bytes | memoryview]
    contents: Mapping[int, Sequence[memoryview]]
    trouble: str = ""


def receive(data: bytes) -> Received:
    """Read a message. Raises BadMessageError for bytes that are none."""
    if len(data) <= SMALL_BYTES:
        message = _parse(data)
        return Received(message, message.raw_input_contents, {})
    parts, trouble = _Split(memoryview(data)), ""
    try:
        parts.take_apart()
    except _TooManyError as error:
        trouble = str(error)
    message = _parse(b"".join(parts.left))
    if sum(piece.nbytes for pieces in parts.contents.values() for piece in pieces) > SMALL_BYTES:
        return Received(message, parts.raw, parts.contents, trouble)
    for index, pieces in parts.contents.items():
        message.inputs[index].contents.SetInParent()
        _merge(message.inputs[index].contents, b"".join(pieces))
    return Received(message, parts.raw, {}, trouble)


def _parse(data: bytes) -> Any:
    message = pb.ModelInferRequest()
    _merge(message, data)
    return message


def _merge(message: Any, data: bytes) -> None:
    try:
        message.MergeFromString(data)
    except DecodeError as error:
        raise not_protobuf() from error


def not_protobuf() -> BadMessageError:
    """The error for bytes that cannot be read."""
    return BadMessageError("the request is not the protobuf of its method")


class _TooManyError(Exception):
    """A message has too many parts. Never leaves this module."""


class _Split:
    """Takes the data of tensors out of a message, and keeps what is left.

    Attributes:
        left: The message without the data, in pieces.
        contents: The `contents` of inputs, by their index.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._fields = self._left_bytes = 0
        self._counts = dict.fromkeys(_MOST, 0)
        self.left: list[bytes | memoryview] = []
        self.raw: list[memoryview] = []
        self.contents: dict[int, list[memoryview]] = {}

    def take_apart(self) -> None:
        """Go through the message. Raises _TooManyError, and BadMessageError."""
        data = self._data
        for tag, begin, at, end in self._walk(0, len(data)):
            if tag in _MOST:
                self._count(tag)
            if tag == _RAW:
                self.raw.append(data[at:end])
            elif tag == _INPUTS:
                self._take_input(begin, at, end)
            elif tag in _KEPT:  # others are unknown, and readers of protobuf step over them
                self._keep([data[begin:end]])

    def _take_input(self, begin: int, at: int, end: int) -> None:
        data, kept, taken = self._data, [], []
        for tag, inner, inner_at, inner_end in self._walk(at, end):
            if tag == _CONTENTS:
                taken.append(data[inner_at:inner_end])
            else:
                kept.append(data[inner:inner_end])
        if not taken:
            self._keep([data[begin:end]])
            return
        self.contents[self._counts[_INPUTS] - 1] = taken
        length = sum(piece.nbytes for piece in kept)
        self._keep([bytes([_INPUTS]) + varint_of(length), *kept])

    def _count(self, tag: int) -> None:
        self._counts[tag] += 1
        most, name = _MOST[tag]
        if self._counts[tag] > most:
            raise _TooManyError(f"the request has more than {most} {name}; {most} are the most")

    def _keep(self, pieces: list[bytes | memoryview]) -> None:
        self._left_bytes += sum(map(len, pieces))
        if self._left_bytes > SMALL_BYTES:
            raise _TooManyError(f"the request without the data of its tensors is larger than {SMALL_BYTES} bytes")
        self.left += pieces

    def _walk(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield each field between two offsets: its tag, and the offsets of the field, its value and its end."""
        while at < end:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise _TooManyError(f"the request has more than {MOST_FIELDS} fields; send fewer and larger ones")
            begin = at
            tag, at = self._varint(at, end)
            kind = tag & 7
            if kind == _BYTES:
                length, at = self._varint(at, end)
                after = at + length
            elif kind == _VARINT:
                after = self._varint(at, end)[1]
            else:
                after = at + _FIXED.get(kind, end)
            if after > end or not tag >> 3:
                raise not_protobuf()
            yield tag, begin, at, after
            at = after

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A whole number, and where it ends."""
        value = 0
        for shift in range(0, _MOST_BITS, 7):
            if at == end:
                break
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise not_protobuf()


def varint_of(value: int) -> bytes:
    """Return a whole number as protobuf writes it."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
