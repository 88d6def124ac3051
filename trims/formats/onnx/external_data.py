"""Finding the external data files of an ONNX model without protobuf, and without reading its weights.

The daemon must know every file of an artifact before it lets a converter near it. This walks the wire format
by seeking from field to field: of a 2 GiB model it reads the descriptions only. What may hold a tensor but no word of
external data is stepped over: trees of decisions are written as millions of numbers, each a field. Not covered:
whether the model is valid beyond what the walk touches.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError
from trims.formats.base import check_relative
from trims.formats.onnx.wire_format import LENGTH, VARINT, WireFile
from trims.image.source import SourceFile, open_source

if TYPE_CHECKING:
    from trims.formats.onnx.wire_format import Field

#: Fields that lead to tensors: message -> field number -> message inside.
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
#: Entry of a tensor that is stored externally: its key is `location`, a field 1 of eight bytes; longer forms of both
#: numbers are allowed.
_NAMES_A_FILE = re.compile(rb"(?:\x0a|\x8a\x80*\x00)(?:\x08|\x88\x80*\x00)location")
#: Messages that are searched for such an entry before they are walked, and the bytes of a file searched at most.
_SEARCHED, _SEARCHED_BYTES = ("node", "function"), 64 << 20
#: Most nested messages: protobuf itself stops at 100.
_MAX_DEPTH = 100
_MAX_LOCATION_BYTES = 4096
#: Most fields walked, which bounds the time of a hostile file; the largest published models have some hundred thousand.
_MAX_FIELDS = 20_000_000


def external_locations(main: Path) -> tuple[str, ...]:
    """Return the distinct `location` texts of all externally stored tensors, in order of appearance.

    Raises ArtifactError if the file cannot be read or is not an ONNX model.
    """
    with open_source(main) as fd:
        return tuple(dict.fromkeys(_Scan(WireFile(main, fd, _MAX_FIELDS)).locations()))


def count_external(main: Path) -> int:
    """Return how many tensors are stored externally, wherever in the model. Raises as `external_locations`."""
    with open_source(main) as fd:
        return len(_Scan(WireFile(main, fd, _MAX_FIELDS)).locations())


def look_at_external(main: Path, location: str) -> SourceFile:
    """Look at a model's external data file as it is now, if ONNX Runtime would read it too.

    Links are followed, but no further than ONNX Runtime follows them: to what lies beneath the folder of the model's
    path, or of the file that this path leads to. So a hub's cache may link the model and its data into one folder.

    Raises ArtifactError for data that is missing, or lies outside these folders.
    """
    check_relative(main, location)
    path = main.parent / location
    with open_source(path) as fd:
        # Of what is open: a link that is exchanged meanwhile changes nothing.
        found = Path(os.readlink(f"/proc/self/fd/{fd}"))
        folders = (os.path.realpath(main.parent), os.path.dirname(os.path.realpath(main)))
        if not any(found.is_relative_to(folder) for folder in folders):
            raise ArtifactError(
                f"{main}: its external data {location!r} leads by a link to {found}, outside the model's folder, "
                "where ONNX Runtime reads nothing; put the file itself beside the model"
            )
        return SourceFile.of(path, fd)


def names_a_file(data: bytes) -> bool:
    """Return whether a tensor in this part of a model may be stored externally."""
    return _NAMES_A_FILE.search(data) is not None


def read_entry(file: WireFile, field: Field, most_bytes: int = _MAX_LOCATION_BYTES) -> tuple[bytes, bytes]:
    """Return key and value of a StringStringEntry, reading little more than a path may have. Raises ArtifactError."""
    texts = {_KEY: b"", _VALUE: b""}
    for number, wire, _, at, after in file.fields(field.begin, field.end):
        if wire == LENGTH and number in texts:
            texts[number] = file.read(at, min(after, at + most_bytes + 1))
    if len(texts[_VALUE]) > most_bytes and texts[_KEY] == b"location":
        raise file.broken(f"it names a file by more than {_MAX_LOCATION_BYTES} bytes")
    return texts[_KEY], texts[_VALUE]


def location_of(file: WireFile, value: bytes) -> str:
    """Return the name of a file as text. Raises ArtifactError."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise file.broken("it names a file by bytes that are not UTF-8") from error


class _Scan:
    """One walk through one file."""

    def __init__(self, file: WireFile) -> None:
        self._file = file
        self._left = _SEARCHED_BYTES
        self._found: list[str] = []

    def locations(self) -> list[str]:
        if not self._message("model", 0, self._file.nbytes, 0):
            raise self._file.broken("it has no graph")
        return self._found

    def _message(self, kind: str, begin: int, end: int, depth: int) -> bool:
        """Walk one message. Return whether it held what its kind cannot be without (a model's graph)."""
        if depth > _MAX_DEPTH:
            raise self._file.broken("its graphs are nested too deeply")
        if kind in _SEARCHED and end - begin <= self._left:
            self._left -= end - begin
            if not names_a_file(self._file.read(begin, end)):
                return False
        inside, has_graph = _PATHS[kind], False
        for number, wire, _, at, after in self._file.fields(begin, end):
            child = inside.get(number)
            if child is None or wire != LENGTH:
                continue
            has_graph |= number == _GRAPH_FIELD
            if child == "tensor":
                self._tensor(at, after)
            else:
                self._message(child, at, after, depth + 1)
        return has_graph

    def _tensor(self, begin: int, end: int) -> None:
        locations: list[str] = []
        external = False
        for field in self._file.fields(begin, end):
            if field.number == _EXTERNAL_DATA and field.wire == LENGTH:
                key, value = read_entry(self._file, field)
                locations += [location_of(self._file, value)] if key == b"location" else []
            elif field.number == _DATA_LOCATION and field.wire == VARINT:
                external = self._file.varint(field.begin, field.end)[0] == _EXTERNAL
        if external:
            if len(locations) != 1:
                where = "and names its file twice" if locations else "in no named file"
                raise self._file.broken(f"a tensor is stored externally, {where}")
            self._found += locations
