"""ONNX models in place: their graph without the large weights, and where those lie, from the wire format alone.

Dense weights are stored as bytes, in the model's file or beside it. What is left of the model when they are taken out
becomes the program. Those of the model's file are declared there as external data in no file, and a session feeds them
from the mapped pages. Those of other files stay declared as they are: ONNX Runtime maps such files by itself, which
costs less than to be fed, and a session feeds them only where it cannot see these very files. Nothing is optimized.
Read are the graph without weights and the head of each initializer. Not covered: weights in attributes of nodes and in
subgraphs, which stay in the program with all that is not dense, and external data there, which takes a conversion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import NotInPlaceError
from trims.core.layout import DTYPE_BYTES, MAX_DIMENSIONS, element_count
from trims.core.units import format_bytes
from trims.formats.onnx.external_data import count_external, location_of, names_a_file, read_entry
from trims.formats.onnx.wire_format import LENGTH, VARINT, WireFile, bytes_field, head_of, number_field
from trims.image.plan import SourceTensor
from trims.image.source import FileSpan, SourceFile, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from trims.formats.onnx.wire_format import Field

#: Smaller initializers stay in the program: shape inference reads them (shapes, axes, pads) before weights
#: are fed.
INLINE_BELOW_BYTES = 1024
#: The file the program names for fed initializers. With /dev as folder it is there on every host, holds
#: nothing and cannot be mapped: an initializer that is not fed is an error, never zeros.
FED_LOCATION = "null"
#: onnx.TensorProto.DataType -> the image's dtype.
DTYPES = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64",
    12: "U32", 13: "U64", 14: "C64", 16: "BF16", 17: "F8_E4M3", 18: "F8_E4M3FNUZ", 19: "F8_E5M2",
    20: "F8_E5M2FNUZ", 24: "F8_E8M0",
}  # fmt: skip
#: Numbers of fields, by message.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 5, 11, 12
_DIMS, _DATA_TYPE, _SEGMENT, _NAME, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 3, 8, 9, 13, 14
#: Numbers that are stored one by one, by the fields that may hold them.
_TYPED_DATA = (4, 5, 6, 7, 10, 11)
_VALUE_NAME, _VALUE_TYPE, _TENSOR_TYPE, _ELEM_TYPE, _SHAPE, _DIM, _DIM_VALUE, _DIM_PARAM = 1, 2, 1, 1, 2, 1, 1, 2
_EXTERNAL = 1
#: Keys of an external tensor's place; there may be checksums beside them.
_PLACES = (b"location", b"offset", b"length")
#: Largest graph without its weights, in bytes: it is copied, not parsed.
_MAX_PROGRAM_BYTES = 16 << 20
#: Most fields walked, in a second or so. Nodes are stepped over.
_MAX_FIELDS = 300_000
_MAX_TEXT_BYTES = 4096
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class OriginalGraph:
    """An ONNX model taken apart.

    Attributes:
        sources: The dense initializers, as spans of files.
        body: The model without those that are fed.
        fed: Names of the initializers that `body` lacks, because they lie in the model's file.
        external: Names of those that `body` declares where they are.
        files: The files of the latter by their locations: device, inode, length and time in ns of each.
        main: Device, inode, length and time in ns of the model's file.
        inputs: What to feed a session, which are those without an initializer: name, dtype and shape of each.
    """

    sources: list[SourceTensor]
    body: bytes
    fed: list[str]
    external: list[str]
    files: dict[str, list[int]]
    main: list[int]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    metadata: dict[str, str]


def read_graph(main: Path, file_at: Callable[[str], SourceFile]) -> OriginalGraph:
    """Take a model apart.

    Args:
        file_at: Looks at external data by its `location`. Raises ArtifactError for one that may not be read.

    Raises NotInPlaceError for a model that needs a conversion, ArtifactError for what is no model.
    """
    looked = SourceFile.look(main)
    with open_source(main) as fd:
        reader = _Reader(WireFile(main, fd, _MAX_FIELDS, NotInPlaceError), looked, file_at)
        found = reader.model()
        looked.check(fd)
    if reader.may_name_files and count_external(main) != reader.external_count:
        raise NotInPlaceError("it has external data outside its graph's own initializers")
    return found


class _Span(NamedTuple):
    """Bytes of the model's file that stay in the program."""

    begin: int
    end: int


@dataclass(slots=True)
class _Tensor:
    """Description of an initializer; `raw` is the place of its bytes in the model's file."""

    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    name: str = ""
    raw: _Span | None = None
    entries: dict[bytes, bytes] = field(default_factory=dict)
    is_external: bool = False
    in_parts: bool = False
    is_typed: bool = False

    @property
    def has_data(self) -> bool:
        """Return whether its numbers are stored in some way, or there are none."""
        return self.is_external or self.is_typed or self.raw is not None or 0 in self.dims

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its extents."""
        return tuple(self.dims)


class _Parts:
    """A message in the making: bytes, and spans of the file."""

    def __init__(self) -> None:
        self.parts: list[bytes | _Span] = []
        self.nbytes = 0

    def add(self, part: bytes) -> None:
        self.parts.append(part)
        self._count(len(part))

    def keep(self, begin: int, end: int) -> None:
        """Take a range of bytes as it is, in one piece with the range before if the two are neighbours."""
        last = self.parts[-1] if self.parts else b""
        if isinstance(last, _Span) and last.end == begin:
            self.parts[-1] = _Span(last.begin, end)
        else:
            self.parts.append(_Span(begin, end))
        self._count(end - begin)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if self.nbytes > _MAX_PROGRAM_BYTES:
            raise NotInPlaceError(f"its graph without dense weights is larger than {format_bytes(_MAX_PROGRAM_BYTES)}")


class _Reader:
    """One walk through one model.

    Attributes:
        external_count: How many initializers that were taken out are stored externally.
        may_name_files: Whether what stays in the program may have external data of its own.
    """

    def __init__(self, file: WireFile, main: SourceFile, file_at: Callable[[str], SourceFile]) -> None:
        self.external_count = 0
        self.may_name_files = False
        self._file = file
        self._main = main
        self._file_at = file_at
        self._files: dict[str, SourceFile] = {}
        self._sources: dict[str, SourceTensor] = {}
        #: Place of a tensor -> the first one there, and its length.
        self._owners: dict[FileSpan, tuple[str, int]] = {}
        self._fed: list[str] = []
        self._external: dict[str, str] = {}
        self._values: dict[int, list[dict[str, Any]]] = {_GRAPH_INPUT: [], _GRAPH_OUTPUT: []}
        self._initialized: set[str] = set()

    def model(self) -> OriginalGraph:
        """Walk all of it."""
        around, graph, metadata = _Parts(), None, {}
        for each in self._file.fields(0, self._file.nbytes):
            if each.number == _MODEL_GRAPH and each.wire == LENGTH:
                if graph is not None:
                    raise NotInPlaceError("it has two graphs, which would have to be merged")
                graph = self._graph(each)
                continue
            around.keep(each.start, each.end)
            if each.number == _MODEL_METADATA and each.wire == LENGTH:
                key, value = read_entry(self._file, each, most_bytes=each.nbytes)
                metadata[_text(key)] = _text(value)
        if graph is None:
            raise self._file.broken("it has no graph")
        # The order of fields means nothing: the graph may come last.
        body = self._written(around) + head_of(_MODEL_GRAPH, graph.nbytes) + self._written(graph)
        inputs = [each for each in self._values[_GRAPH_INPUT] if each["name"] not in self._initialized]
        outputs = self._values[_GRAPH_OUTPUT]
        files = {location: self._files[location] for location in self._external.values()}
        known = {location: _known(file) for location, file in files.items()}
        sources, names = list(self._sources.values()), list(self._external)
        return OriginalGraph(sources, body, self._fed, names, known, _known(self._main), inputs, outputs, metadata)

    def _written(self, message: _Parts) -> bytes:
        pieces = []
        for part in message.parts:
            piece = self._file.read_all(part.begin, part.end) if isinstance(part, _Span) else part
            self.may_name_files = self.may_name_files or (isinstance(part, _Span) and names_a_file(piece))
            pieces.append(piece)
        return b"".join(pieces)

    def _graph(self, message: Field) -> _Parts:
        kept = _Parts()
        for each in self._file.fields(message.begin, message.end):
            if each.number == _GRAPH_INITIALIZER and each.wire == LENGTH:
                self._initializer(each, kept)
                continue
            kept.keep(each.start, each.end)
            if each.number in self._values and each.wire == LENGTH:
                self._values[each.number].append(self._value(each))
        return kept

    # -- initializers ----------------------------------------------------------------------------------------------

    def _initializer(self, message: Field, kept: _Parts) -> None:
        """Take an initializer's bytes out, if it is large and dense; else keep it in the program."""
        tensor = self._tensor(message)
        self._initialized.add(tensor.name)
        dtype, span = DTYPES.get(tensor.data_type), self._span(tensor)
        if not tensor.has_data:
            raise NotInPlaceError(f"initializer {tensor.name!r} has no data")
        if dtype is None or span is None:
            kept.keep(message.start, message.end)
            return
        self.external_count += tensor.is_external
        nbytes = self._checked_bytes(tensor, dtype, span)
        self._take(tensor, dtype, span, nbytes)
        if nbytes >= INLINE_BELOW_BYTES and tensor.is_external:
            kept.add(bytes_field(_GRAPH_INITIALIZER, _described(tensor) + _located(tensor.entries)))
            self._external[tensor.name] = tensor.entries[b"location"].decode()
        elif nbytes >= INLINE_BELOW_BYTES:
            fed = {b"location": FED_LOCATION.encode(), b"offset": b"0", b"length": str(nbytes).encode()}
            kept.add(bytes_field(_GRAPH_INITIALIZER, _described(tensor) + _located(fed)))
            self._fed.append(tensor.name)
        elif tensor.is_external:
            raw = bytes_field(_RAW_DATA, span.file.read(nbytes, span.offset))
            kept.add(bytes_field(_GRAPH_INITIALIZER, _described(tensor) + raw))
        else:
            kept.keep(message.start, message.end)

    def _tensor(self, message: Field) -> _Tensor:
        found = _Tensor()
        for each in self._file.fields(message.begin, message.end):
            if each.number == _DIMS:
                found.dims += self._numbers(each)
                if len(found.dims) > MAX_DIMENSIONS or min(found.dims, default=0) < 0:
                    raise NotInPlaceError("an initializer has an impossible shape")
            elif each.number == _SEGMENT:
                found.in_parts = True
            elif each.wire == VARINT and each.number == _DATA_TYPE:
                found.data_type = self._number(each)
            elif each.wire == VARINT and each.number == _DATA_LOCATION:
                found.is_external = self._number(each) == _EXTERNAL
            elif each.wire == LENGTH and each.number == _NAME:
                found.name = self._text(each)
            else:
                self._take_data(each, found)
        return found

    def _take_data(self, each: Field, found: _Tensor) -> None:
        if each.number in _TYPED_DATA:
            found.is_typed = True
        elif each.wire == LENGTH and each.number == _RAW_DATA:
            found.raw = _Span(each.begin, each.end)
        elif each.wire == LENGTH and each.number == _EXTERNAL_DATA:
            key, text = read_entry(self._file, each)
            if key in found.entries:
                raise NotInPlaceError(f"initializer {found.name!r} has two entries {_text(key)!r} of external data")
            found.entries[key] = text

    def _span(self, tensor: _Tensor) -> FileSpan | None:
        """Return where the tensor's bytes lie; None if they are not dense in a file."""
        if tensor.in_parts:
            return None
        if tensor.is_external:
            return self._external_span(tensor)
        return None if tensor.raw is None else FileSpan(self._main, tensor.raw.begin)

    def _external_span(self, tensor: _Tensor) -> FileSpan:
        location = location_of(self._file, tensor.entries.get(b"location", b""))
        if location not in self._files:
            self._files[location] = self._file_at(location)
        return FileSpan(self._files[location], _offset(tensor.entries.get(b"offset", b"0")))

    def _checked_bytes(self, tensor: _Tensor, dtype: str, span: FileSpan) -> int:
        """Return the tensor's length in bytes. Raises NotInPlaceError if the file states another one."""
        nbytes = element_count(tensor.shape) * DTYPE_BYTES[dtype]
        if tensor.is_external:
            stored = _offset(tensor.entries.get(b"length", str(nbytes).encode()))
        else:
            stored = 0 if tensor.raw is None else tensor.raw.end - tensor.raw.begin
        if stored != nbytes or span.offset + nbytes > span.file.nbytes:
            raise NotInPlaceError(f"initializer {tensor.name!r} of {dtype}{tensor.dims} has {stored} bytes")
        return nbytes

    def _take(self, tensor: _Tensor, dtype: str, span: FileSpan, nbytes: int) -> None:
        """Add a tensor to the image; the second of two at one place is tied to the first."""
        if tensor.name in self._sources or not tensor.name:
            raise NotInPlaceError(f"initializer {tensor.name!r} is there twice, or has no name")
        owner, owned_bytes = self._owners.setdefault(span, (tensor.name, nbytes)) if nbytes else (tensor.name, 0)
        tied_to = owner if owner != tensor.name and owned_bytes >= nbytes else None
        kept = None if tied_to else span
        self._sources[tensor.name] = SourceTensor(tensor.name, dtype, tensor.shape, tied_to=tied_to, span=kept)

    # -- inputs and outputs ----------------------------------------------------------------------------------------

    def _value(self, message: Field) -> dict[str, Any]:
        """Return name, dtype and shape of an input or output; a dimension is a number, a name, or None if unknown."""
        found: dict[str, Any] = {"name": "", "dtype": None, "shape": []}
        for each in self._file.fields(message.begin, message.end):
            if each.number == _VALUE_NAME and each.wire == LENGTH:
                found["name"] = self._text(each)
        for tensor in self._inside(message, _VALUE_TYPE, _TENSOR_TYPE):
            for each in self._file.fields(tensor.begin, tensor.end):
                if each.number == _ELEM_TYPE and each.wire == VARINT:
                    found["dtype"] = DTYPES.get(self._number(each))
            found["shape"] += [self._dimension(each) for each in self._inside(tensor, _SHAPE, _DIM)]
        return found

    def _inside(self, message: Field, *path: int) -> Iterator[Field]:
        """Yield the messages at the end of a path of field numbers."""
        for each in self._file.fields(message.begin, message.end):
            if each.number == path[0] and each.wire == LENGTH:
                yield from self._inside(each, *path[1:]) if path[1:] else (each,)

    def _dimension(self, message: Field) -> int | str | None:
        found: int | str | None = None
        for each in self._file.fields(message.begin, message.end):
            if each.number == _DIM_VALUE and each.wire == VARINT:
                found = self._number(each)
            elif each.number == _DIM_PARAM and each.wire == LENGTH:
                found = self._text(each) or None
        return found

    # -- values ----------------------------------------------------------------------------------------------------

    def _number(self, each: Field) -> int:
        value = self._file.varint(each.begin, each.end)[0] & (1 << 64) - 1
        return value - (1 << 64) if value >> 63 else value

    def _numbers(self, each: Field) -> list[int]:
        if each.wire == VARINT:
            return [self._number(each)]
        if each.wire != LENGTH or each.nbytes > 10 * MAX_DIMENSIONS:
            raise NotInPlaceError("an initializer has an impossible shape")
        found, at = [], each.begin
        while at < each.end:
            value, at = self._file.varint(at, each.end)
            found.append(value - (1 << 64) if value >> 63 else value)
        return found

    def _text(self, each: Field) -> str:
        if each.nbytes > _MAX_TEXT_BYTES:
            raise NotInPlaceError(f"it has a name of {each.nbytes} bytes")
        return _text(self._file.read(each.begin, each.end))


def _known(file: SourceFile) -> list[int]:
    """Return device, inode, length and time in ns, by which a session knows a file again."""
    return [*file.stamp[:2], file.nbytes, file.stamp[2]]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotInPlaceError(f"a text of it is not UTF-8: {error}") from error


def _offset(text: bytes) -> int:
    """Return a number of an entry of external data. Raises NotInPlaceError if it is none, or larger than any file."""
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise NotInPlaceError(f"{text!r} is no place in a file")
    return int(text)


def _described(tensor: _Tensor) -> bytes:
    """Return the tensor's message without its bytes."""
    dims = b"".join(number_field(_DIMS, extent) for extent in tensor.dims)
    return dims + number_field(_DATA_TYPE, tensor.data_type) + bytes_field(_NAME, tensor.name.encode())


def _located(entries: Mapping[bytes, bytes]) -> bytes:
    """Return the fields that say that a tensor is stored externally, and where."""
    pairs = [bytes_field(1, key) + bytes_field(2, text) for key, text in entries.items() if key in _PLACES]
    external = b"".join(bytes_field(_EXTERNAL_DATA, pair) for pair in pairs)
    return external + number_field(_DATA_LOCATION, _EXTERNAL)
