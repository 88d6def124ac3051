"""Finding the external data files of an ONNX model without protobuf, and without reading its weights.

The daemon must know every file of an artifact before it lets a converter near it. This walks the wire format
by seeking from field to field: of a 2 GiB model it reads the descriptions only. Not covered: whether the
model is valid beyond what the walk touches.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError
from trims.image.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Which fields lead to tensors: message -> field number -> message inside.
_PATHS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_GRAPH_FIELD = 7
_EXTERNAL_DATA, _DATA_LOCATION, _EXTERNAL = 13, 14, 1
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WINDOW_BYTES = 4096
#: protobuf itself stops at 100 nested messages.
_MAX_DEPTH = 100
_MAX_LOCATION_BYTES = 4096
#: Bounds the time a hostile file can take; the largest published models have some hundred thousand.
_MAX_FIELDS = 20_000_000


def external_locations(main: Path) -> tuple[str, ...]:
    """The distinct `location` texts of all externally stored tensors, in order of appearance.

    Raises ArtifactError if the file cannot be read or is not an ONNX model.
    """
    with open_source(main) as fd:
        return _Scan(main, fd).locations()


class _Scan:
    """One walk through one file."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._nbytes = os.fstat(fd).st_size
        self._window = b""
        self._window_at = 0
        self._fields = 0
        self._found: dict[str, None] = {}

    def locations(self) -> tuple[str, ...]:
        if not self._message("model", 0, self._nbytes, 0):
            raise self._broken("it has no graph")
        return tuple(self._found)

    def _message(self, kind: str, begin: int, end: int, depth: int) -> bool:
        """Walk one message; True if it held what its kind cannot be without (a model's graph)."""
        if depth > _MAX_DEPTH:
            raise self._broken("its graphs are nested too deeply")
        inside, has_graph = _PATHS[kind], False
        for number, wire, at, after in self._walk(begin, end):
            child = inside.get(number)
            if child is None or wire != _LENGTH:
                continue
            has_graph |= number == _GRAPH_FIELD
            if child == "tensor":
                self._tensor(at, after)
            else:
                self._message(child, at, after, depth + 1)
        return has_graph

    def _tensor(self, begin: int, end: int) -> None:
        location, external = None, False
        for number, wire, at, after in self._walk(begin, end):
            if number == _EXTERNAL_DATA and wire == _LENGTH:
                found = self._location(at, after)
                location = location if found is None else found
            elif number == _DATA_LOCATION and wire == _VARINT:
                external = self._varint(at, after)[0] == _EXTERNAL
        if external:
            if location is None:
                raise self._broken("a tensor is stored externally, in no named file")
            self._found[location] = None

    def _location(self, begin: int, end: int) -> str | None:
        """The value of a StringStringEntry whose key is `location`; None for other keys."""
        texts = {_KEY: b"", _VALUE: b""}
        for number, wire, at, after in self._walk(begin, end):
            if wire == _LENGTH and number in texts:
                texts[number] = self._read(at, min(after, at + _MAX_LOCATION_BYTES + 1))
        if texts[_KEY] != b"location":
            return None
        if len(texts[_VALUE]) > _MAX_LOCATION_BYTES:
            raise self._broken(f"it names a file by more than {_MAX_LOCATION_BYTES} bytes")
        try:
            return texts[_VALUE].decode()
        except UnicodeDecodeError as error:
            raise self._broken("it names a file by bytes that are not UTF-8") from error

    def _walk(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Every field as (number, wire type, first byte of its payload, first byte after it)."""
        at = begin
        while at < end:
            self._fields += 1
            if self._fields > _MAX_FIELDS:
                raise self._broken(f"it has more than {_MAX_FIELDS} parts")
            tag, at = self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            payload, after = self._payload(wire, at, end)
            if number == 0 or after > end:
                raise self._broken(f"a field at byte {at} leaves its message")
            yield number, wire, payload, after
            at = after

    def _payload(self, wire: int, at: int, end: int) -> tuple[int, int]:
        """First byte of the payload and first byte after it."""
        if wire == _VARINT:
            return at, self._varint(at, end)[1]
        if wire == _LENGTH:
            length, at = self._varint(at, end)
            return at, at + length
        if wire == _FIXED64:
            return at, at + 8
        if wire == _FIXED32:
            return at, at + 4
        raise self._broken(f"byte {at} begins no field")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number and the first byte after it."""
        value = 0
        for count, byte in enumerate(self._read(at, min(at + 10, end))):
            value |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return value, at + count + 1
        raise self._broken(f"the number at byte {at} has no end")

    def _read(self, begin: int, end: int) -> bytes:
        """Bytes of the file through a small window, so that neighbouring fields cost one read."""
        start = begin - self._window_at
        if start < 0 or end - self._window_at > len(self._window):
            self._window_at, start = begin, 0
            self._window = os.pread(self._fd, max(_WINDOW_BYTES, end - begin), begin)
        return self._window[start : start + end - begin]

    def _broken(self, what: str) -> ArtifactError:
        return ArtifactError(f"{self._path} is not an ONNX model that can be read: {what}")
