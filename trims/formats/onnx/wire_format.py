"""Walking a protobuf file field by field, by seeking: what is large is stepped over and never read.

It knows the wire format only; which message has which fields is the caller's. Standard library only. Not covered:
groups, which protobuf gave up and no ONNX model has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.core.errors import TrimsError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WINDOW_BYTES = 4096


class Field(NamedTuple):
    """One field of a message; places count from the start of the file.

    Attributes:
        start: First byte of its tag.
        begin: First byte of its payload.
        end: First byte after it.
    """

    number: int
    wire: int
    start: int
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Return the length of the payload."""
        return self.end - self.begin


class WireFile:
    """A protobuf file that is open for reading.

    Args:
        most_fields: Bounds the time that a hostile file can take.
        too_many: What a walk of more steps ends with.
    """

    def __init__(
        self, path: Path, fd: int, most_fields: int, too_many: Callable[[str], TrimsError] = ArtifactError
    ) -> None:
        self.path = path
        self.nbytes = os.fstat(fd).st_size
        self._fd = fd
        self._most_fields = most_fields
        self._too_many = too_many
        self._fields = 0
        self._window = b""
        self._window_at = 0

    def fields(self, begin: int, end: int) -> Iterator[Field]:
        """Yield every field of the message in a range of bytes. Raises ArtifactError if it is no message."""
        at = begin
        while at < end:
            self._fields += 1
            if self._fields > self._most_fields:
                raise self._too_many(self._words(f"it has more than {self._most_fields} parts"))
            start = at
            tag, at = self.varint(at, end)
            number, wire = tag >> 3, tag & 7
            payload, after = self._payload(wire, at, end)
            if number == 0 or after > end:
                raise self.broken(f"a field at byte {at} leaves its message")
            yield Field(number, wire, start, payload, after)
            at = after

    def _payload(self, wire: int, at: int, end: int) -> tuple[int, int]:
        """Return the first byte of the payload and the first byte after it."""
        if wire == VARINT:
            return at, self.varint(at, end)[1]
        if wire == LENGTH:
            length, at = self.varint(at, end)
            return at, at + length
        if wire == FIXED64:
            return at, at + 8
        if wire == FIXED32:
            return at, at + 4
        raise self.broken(f"byte {at} begins no field")

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return the number at this byte, and the first byte after it. Raises ArtifactError."""
        value = 0
        for count, byte in enumerate(self.read(at, min(at + 10, end))):
            value |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return value, at + count + 1
        raise self.broken(f"the number at byte {at} has no end")

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes of the file through a small window, so that neighbouring fields cost one read."""
        start = begin - self._window_at
        if start < 0 or end - self._window_at > len(self._window):
            self._window_at, start = begin, 0
            self._window = os.pread(self._fd, max(_WINDOW_BYTES, end - begin), begin)
        return self._window[start : start + end - begin]

    def read_all(self, begin: int, end: int) -> bytes:
        """Return many bytes at once, past the window. Raises ArtifactError if the file has fewer by now."""
        found = os.pread(self._fd, end - begin, begin)
        if len(found) < end - begin:
            raise self.broken(f"it ends at byte {begin + len(found)}: truncated meanwhile?")
        return found

    def broken(self, what: str) -> ArtifactError:
        """Return an error for what is wrong with the file."""
        return ArtifactError(self._words(what))

    def _words(self, what: str) -> str:
        return f"{self.path} is not an ONNX model that can be read: {what}"


def varint(number: int) -> bytes:
    """Return a number of 64 bits as it is written; a negative one takes ten bytes."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, payload: bytes) -> bytes:
    """Return a field that holds bytes, a text or a message."""
    return head_of(number, len(payload)) + payload


def head_of(number: int, nbytes: int) -> bytes:
    """Return the bytes before the payload of a field that holds this many bytes."""
    return varint(number << 3 | LENGTH) + varint(nbytes)
