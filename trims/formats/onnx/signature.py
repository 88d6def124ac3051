"""Inputs and outputs of an ONNX model, read from the wire format without its weights and without ONNX.

Names, types and shapes of the graph's inputs and outputs are read, and the names of its initializers, which models of
before ONNX 1.3 list among the inputs. Nodes and weights are stepped over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import NotInPlaceError
from trims.formats.onnx.wire_format import LENGTH, VARINT, WireFile
from trims.image.source import open_source
from trims.manifests.serving import ANY, ANY_RANK, MOST_TENSORS, Signature, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from trims.formats.onnx.wire_format import Field

#: onnx.TensorProto.DataType -> the protocol's data type.
_DTYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
_MODEL_GRAPH = 7
_INITIALIZER, _SPARSE_INITIALIZER, _INPUT, _OUTPUT = 5, 15, 11, 12
#: Field numbers of names: 8 in a tensor; in a sparse tensor, the field of its values, which have the name, is 1.
_TENSOR_NAME, _SPARSE_VALUES = 8, 1
_VALUE_NAME, _VALUE_TYPE, _TENSOR_TYPE, _ELEM_TYPE, _SHAPE, _DIM, _DIM_VALUE = 1, 2, 1, 1, 2, 1, 1
#: Longest name of use to requests, in bytes.
_MOST_NAME_BYTES = 1024
#: Most fields walked, in a third of a second; published models have some thousands.
_MAX_FIELDS = 100_000


def read_signature(main: Path) -> Signature:
    """Return a model's inputs and outputs; empty if requests cannot bring all of its inputs.

    Raises NotInPlaceError for a graph that is too large to be read where others wait, ArtifactError for what is none.
    """
    with open_source(main) as fd:
        file = WireFile(main, fd, _MAX_FIELDS, NotInPlaceError)
        reader = _Reader(file)
        for each in file.fields(0, file.nbytes):
            if each.number == _MODEL_GRAPH and each.wire == LENGTH:
                reader.graph(each)
        return reader.signature()


class _Reader:
    """One walk through one model; each list of values is by name, None for what is no tensor of the protocol."""

    def __init__(self, file: WireFile) -> None:
        self._file = file
        self._values: dict[int, dict[str, TensorType | None]] = {_INPUT: {}, _OUTPUT: {}}
        self._initialized: set[str] = set()

    def graph(self, message: Field) -> None:
        for each in self._file.fields(message.begin, message.end):
            if each.wire != LENGTH:
                continue
            if each.number == _INITIALIZER:
                self._initialized.add(self._name(each, _TENSOR_NAME))
            elif each.number == _SPARSE_INITIALIZER:
                self._initialized.update(self._name(values, _TENSOR_NAME) for values in self._in(each, _SPARSE_VALUES))
            elif each.number in self._values:
                found = self._values[each.number]
                if len(found) >= MOST_TENSORS + len(self._initialized):
                    raise NotInPlaceError("its graph has too many inputs or outputs for any request")
                name = self._name(each, _VALUE_NAME)
                found[name] = self._tensor(name, each)

    def signature(self) -> Signature:
        inputs = {name: each for name, each in self._values[_INPUT].items() if name not in self._initialized}
        if None in inputs.values():
            return Signature()
        outputs = self._values[_OUTPUT]
        return Signature(_stated(inputs.values()), _stated(outputs.values()))

    def _tensor(self, name: str, message: Field) -> TensorType | None:
        """Return the type of an input or output; None for sequences, maps and types that the protocol lacks."""
        found: TensorType | None = None
        for tensor in self._in(message, _VALUE_TYPE, _TENSOR_TYPE):
            dtype: str | None = None
            shape: tuple[int, ...] = (ANY_RANK,)  # a type without a shape says nothing of its dimensions
            for each in self._file.fields(tensor.begin, tensor.end):
                if each.number == _ELEM_TYPE and each.wire == VARINT:
                    dtype = _DTYPES.get(self._file.varint(each.begin, each.end)[0])
                elif each.number == _SHAPE and each.wire == LENGTH:
                    shape = tuple(self._length(dim) for dim in self._in(each, _DIM))
            if dtype is not None:
                found = TensorType(name, dtype, shape)
        return found

    def _length(self, message: Field) -> int:
        """Return the length of a dimension; -1 for one with a name, or of which nothing is known."""
        found = ANY
        for each in self._file.fields(message.begin, message.end):
            if each.number == _DIM_VALUE and each.wire == VARINT:
                found = self._file.varint(each.begin, each.end)[0]
        return found if found < 1 << 62 else ANY

    def _in(self, message: Field, *path: int) -> Iterator[Field]:
        """Yield the messages at the end of a path of field numbers."""
        for each in self._file.fields(message.begin, message.end):
            if each.number == path[0] and each.wire == LENGTH:
                yield from self._in(each, *path[1:]) if path[1:] else (each,)

    def _name(self, message: Field, number: int) -> str:
        found = b""
        for each in self._file.fields(message.begin, message.end):
            if each.number == number and each.wire == LENGTH:
                found = self._file.read(each.begin, min(each.end, each.begin + _MOST_NAME_BYTES))
        return found.decode(errors="replace")


def _stated(values: Iterable[TensorType | None]) -> tuple[TensorType, ...]:
    return tuple(each for each in values if each is not None)
