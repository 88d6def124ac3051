"""MXNet models: a symbol file and a `.params` file, as `HybridBlock.export` and `save_checkpoint` write them.

Both are read without MXNet: neither child nor environment is needed to convert, and the weights go from the
file straight into the image. The symbol becomes the program. Covered: dense arrays of all dtypes. Not
covered: sparse arrays, and `.params` files of gluon's `save_parameters`, which name no graph.

Options:
    epoch: Number in the name of the `.params` file; needed if there are several beside the symbol.
"""

from __future__ import annotations

import json
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.core.units import format_bytes
from trims.formats.base import check_options
from trims.image.plan import Contents, SourceTensor
from trims.image.program import Program
from trims.image.source import FileSpan, SourceFile, open_source
from trims.manifests.serving import ANY, ANY_RANK, Signature, TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.formats.base import Artifact
    from trims.image.plan import ImagePlan


# MXNet's `.params` file read without MXNet: names, dtypes, shapes and offsets, never the numbers.
#
# A list of dense arrays as `mx.nd.save` writes it, all four generations: before 0.12 (dimensions of 32 bits),
# V1 (of 64), V2 (storage type) and V3 (numpy shapes). Source: `NDArray::Save` and `NDArray::Load` of MXNet
# 1.9.1, src/ndarray/ndarray.cc. Not covered: sparse arrays, arrays that hold nothing.

_FILE = struct.Struct("<QQQ")
_FILE_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_DENSE = 0
#: mshadow's type flags.
_DTYPES = ("F32", "F64", "F16", "U8", "I32", "I8", "I64", "BOOL", "I16", "U16", "U32", "U64", "BF16")
#: Most dimensions, by MXNet's own limit.
_MAX_DIMENSIONS = 32
_MAX_NAME_BYTES = 1 << 16
#: Fewest bytes of an array: a name's length, and a head without dimensions.
_MIN_ARRAY_BYTES = 8 + 16
#: Bytes that an array adds to a header of JSON.
_DESCRIBED_BYTES = 100


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of the file; `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        """Return the first byte after its numbers, from the start of the file."""
        return self.offset + element_count(self.shape) * DTYPE_BYTES[self.dtype]


def is_params(first_bytes: bytes) -> bool:
    """Return whether a file that begins so is a list of MXNet arrays."""
    return len(first_bytes) >= _FILE.size and _FILE.unpack_from(first_bytes)[:2] == (_FILE_MAGIC, 0)


def params_described_bytes(file: SourceFile) -> int:
    """Return about how many bytes describe the arrays of this file, by the number of arrays it states."""
    head = file.read(_FILE.size)
    if len(head) < _FILE.size or not is_params(head):
        return 0
    return min(int(_FILE.unpack(head)[2]) * _DESCRIBED_BYTES, file.nbytes)


def read_params(file: SourceFile) -> list[StoredArray]:
    """Return all arrays, in order. Raises ArtifactError naming the file and what is wrong with it."""
    with open_source(file.path) as fd:
        return _Reader(file.path, fd, file.nbytes).arrays()


class _Reader:
    """One pass through one file; `at` is the next byte."""

    def __init__(self, path: Path, fd: int, nbytes: int) -> None:
        self._path = path
        self._fd = fd
        self._nbytes = nbytes
        self._at = 0

    def arrays(self) -> list[StoredArray]:
        magic, reserved, count = self._take(_FILE)
        if (magic, reserved) != (_FILE_MAGIC, 0):
            raise self._broken("it does not begin as a list of arrays does")
        if count * _MIN_ARRAY_BYTES > self._nbytes:
            raise self._broken(f"it claims {count} arrays in {self._nbytes} bytes")
        heads = [self._array(number) for number in range(count)]
        names = [self._name() for _ in range(self._count_of_names(count))]
        if self._at != self._nbytes:
            raise self._broken(f"{self._nbytes - self._at} bytes are left over at its end")
        return [StoredArray(name, *head) for name, head in zip(names, heads, strict=True)]

    def _array(self, number: int) -> tuple[str, tuple[int, ...], int]:
        """Return dtype, shape and offset of the next array; step over its numbers."""
        shape = self._shape(number)
        _device, _device_number, flag = self._take(struct.Struct("<iii"))
        if not 0 <= flag < len(_DTYPES):
            raise self._broken(f"array {number} has the unknown dtype {flag}")
        stored = StoredArray("", _DTYPES[flag], shape, self._at)
        if stored.end > self._nbytes:
            raise self._broken(f"array {number} of {stored.dtype}{list(shape)} ends behind the file: truncated?")
        self._at = stored.end
        return stored.dtype, shape, stored.offset

    def _shape(self, number: int) -> tuple[int, ...]:
        (magic,) = self._take(struct.Struct("<I"))
        if magic in (_V2, _V3):
            (storage,) = self._take(struct.Struct("<i"))
            if storage != _DENSE:
                raise self._broken(f"array {number} is sparse; save it with `tostype('default')`")
        rank, width = (self._take(struct.Struct("<i"))[0], "q") if magic in (_V1, _V2, _V3) else (magic, "I")
        # Before V3, no dimensions and a dimension of 0 both mean that the shape is not known.
        empty = rank < 0 or (rank == 0 and magic != _V3)
        if empty or rank > _MAX_DIMENSIONS:
            raise self._broken(f"array {number} {'holds nothing' if empty else f'has {rank} dimensions'}")
        shape = self._take(struct.Struct(f"<{rank}{width}"))
        if min(shape, default=1) < (0 if magic == _V3 else 1):
            raise self._broken(f"array {number} has the impossible shape {list(shape)}")
        return shape

    def _count_of_names(self, arrays: int) -> int:
        (count,) = self._take(struct.Struct("<Q"))
        if count != arrays:
            raise self._broken(f"it has {arrays} arrays and {count} names; save a dictionary, not a list")
        return arrays

    def _name(self) -> str:
        (length,) = self._take(struct.Struct("<Q"))
        if length > _MAX_NAME_BYTES:
            raise self._broken(f"a name claims {length} bytes")
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError as error:
            raise self._broken(f"a name is not UTF-8: {error}") from error

    def _take(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self._bytes(layout.size))

    def _bytes(self, length: int) -> bytes:
        data = os.pread(self._fd, length, self._at)
        if len(data) < length:
            raise self._broken(f"it ends at byte {self._at + len(data)}: truncated?")
        self._at += length
        return data

    def _broken(self, what: str) -> ArtifactError:
        return ArtifactError(f"{self._path} is not a .params file that can be read: {what}")


PROGRAM_KIND = "mxnet-symbol"
_SYMBOL_SUFFIX = "-symbol.json"
_PARAMS = re.compile(r"(?P<prefix>.+)-(?P<epoch>[0-9]{4,})\.params\Z", re.DOTALL)
_MAX_SYMBOL_BYTES = 64 << 20
#: Type of parameters -> the protocol's.
_OF_PARAMETERS = {
    "F64": "FP64", "F16": "FP16", "U8": "UINT8", "I8": "INT8", "I32": "INT32", "I64": "INT64", "BOOL": "BOOL",
}  # fmt: skip
#: Suffix of the inputs that losses take besides the data: answers need none of them.
_LABEL = "_label"
#: A shape as an attribute has it, of at least one length: that of no length says that the shape is not known.
_SHAPE = re.compile(r"[(\[]\s*(-?\d{1,18}(?:\s*,\s*-?\d{1,18})*)\s*,?\s*[)\]]\Z")
#: mshadow's type flag, as an attribute has it -> the protocol's data type.
_FLAGS = {"0": "FP32", "1": "FP64", "2": "FP16", "3": "UINT8", "4": "INT32", "5": "INT8", "6": "INT64", "7": "BOOL"}


class MxnetConverter:
    """See the module."""

    format: ClassVar[str] = "mxnet"
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def needs_child(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return False: nothing of the artifact is run."""
        return False

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Return no frameworks: the image holds what the files hold."""
        return ()

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return whether the name is that of a symbol, or the first bytes are those of a list of arrays."""
        return main.name.endswith(_SYMBOL_SUFFIX) or is_params(first_bytes)

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the file given, and the one that belongs to it."""
        check_options(main, options, ("epoch",))
        other = _params_of(main, options.get("epoch")) if _is_symbol(main) else _symbol_of(main, options.get("epoch"))
        for path in (main, other):
            SourceFile.look(path)
        return main, other

    def described_bytes(self, artifact: Artifact) -> int:
        """Return the bytes of the symbol, which is parsed, and of the arrays' descriptions."""
        symbol, params = sorted(artifact.files[:2], key=_is_symbol, reverse=True)
        return SourceFile.look(symbol).nbytes + params_described_bytes(SourceFile.look(params))

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return True: arrays lie in the file as they are in memory."""
        return True

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Check both files and lay the image out."""
        return self.contents(artifact).plan()

    def signature(self, artifact: Artifact) -> Signature:
        """Return the inputs of the graph; outputs are not stated.

        Where a variable of the symbol does not state shape and type, as is usual, all inputs are hints only (`seen`):
        they have the type of the parameters, or FP32 where these have several.
        """
        symbol, params = sorted(artifact.files[:2], key=_is_symbol, reverse=True)
        arrays = read_params(SourceFile.look(params))
        known = {array.name.partition(":")[2] for array in arrays}
        file = SourceFile.look(symbol)
        nodes = _nodes(_body(file), file.path)
        free = [node for node in nodes if node["op"] == "null" and node["name"] not in known]
        stated = {node["name"]: _stated(node) for node in free}
        if None not in stated.values():
            return Signature(tuple(filter(None, stated.values())))
        (dtype, *others) = {_OF_PARAMETERS.get(array.dtype, "FP32") for array in arrays} or {"FP32"}
        hints = (
            each or TensorType(name, "FP32" if others else dtype, (ANY_RANK,))
            for name, each in stated.items()
            if not name.endswith(_LABEL)
        )
        return Signature(tuple(hints), seen=True)

    def contents(self, artifact: Artifact) -> Contents:
        """Return the contents that both files describe."""
        symbol, params = sorted(artifact.files[:2], key=_is_symbol, reverse=True)
        file = SourceFile.look(params)
        sources, auxiliary = _sources(file)
        return Contents(sources, _program(SourceFile.look(symbol), sources, auxiliary))


def _is_symbol(path: Path) -> bool:
    return path.name.endswith(_SYMBOL_SUFFIX)


def _params_of(symbol: Path, epoch: Any) -> Path:
    prefix = symbol.name[: -len(_SYMBOL_SUFFIX)]
    if epoch is not None:
        if type(epoch) is not int or epoch < 0:
            raise ArtifactError(f"{symbol}: option epoch is a number, not {epoch!r}")
        return symbol.with_name(f"{prefix}-{epoch:04d}.params")
    matches = ((path, _PARAMS.match(path.name)) for path in symbol.parent.iterdir())
    found = sorted(path for path, match in matches if match and match["prefix"] == prefix)
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise ArtifactError(
            f"{symbol} needs one {prefix}-NNNN.params beside it, there is {listed}; the option epoch chooses"
        )
    return found[0]


def _symbol_of(params: Path, epoch: Any) -> Path:
    match = _PARAMS.match(params.name)
    if match is None or epoch is not None:
        raise ArtifactError(
            f"{params}: a file of parameters is named PREFIX-NNNN.params, with PREFIX-symbol.json beside it, "
            "and needs no option epoch; export the model with HybridBlock.export or save_checkpoint"
        )
    return params.with_name(match["prefix"] + _SYMBOL_SUFFIX)


def _sources(file: SourceFile) -> tuple[list[SourceTensor], list[str]]:
    """Return the tensors by their names in the graph, and which of them are auxiliary states."""
    sources: dict[str, SourceTensor] = {}
    auxiliary = []
    for array in read_params(file):
        kind, _, name = array.name.partition(":")
        if kind not in ("arg", "aux") or not name:
            raise ArtifactError(
                f"{file.path}: {array.name!r} is neither arg:NAME nor aux:NAME; export the model with "
                "HybridBlock.export or save_checkpoint, save_parameters does not keep the graph"
            )
        if name in sources:
            raise ArtifactError(f"{file.path}: {name!r} is there twice")
        sources[name] = SourceTensor(name, array.dtype, array.shape, span=FileSpan(file, array.offset))
        if kind == "aux":
            auxiliary.append(name)
    return list(sources.values()), auxiliary


def _body(file: SourceFile) -> bytes:
    if file.nbytes > _MAX_SYMBOL_BYTES:
        raise ArtifactError(
            f"{file.path}: {format_bytes(file.nbytes)} are no symbol; {format_bytes(_MAX_SYMBOL_BYTES)} are the limit"
        )
    return file.read(file.nbytes)


def _program(file: SourceFile, sources: list[SourceTensor], auxiliary: list[str]) -> Program:
    body = _body(file)
    known = {source.name for source in sources}
    inputs = [name for name in _variables(body, file.path) if name not in known]
    return Program(PROGRAM_KIND, {"auxiliary": auxiliary, "inputs": inputs}, body)


def _variables(body: bytes, path: Path) -> list[str]:
    """Return the names of the graph's variables: inputs and parameters."""
    return [node["name"] for node in _nodes(body, path) if node["op"] == "null"]


def _nodes(body: bytes, path: Path) -> list[Any]:
    try:
        nodes: list[Any] = json.loads(body)["nodes"]
        names = [node["name"] for node in nodes if node["op"] == "null"]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ArtifactError(f"{path} is not a symbol: {type(error).__name__}: {error}") from error
    if not nodes or not all(isinstance(name, str) for name in names):
        raise ArtifactError(f"{path} is not a symbol: it has no nodes, or nodes without a name")
    return nodes


def _stated(variable: Any) -> TensorType | None:
    """Return the shape and type that a variable was declared with (`mx.sym.var`); None if one is missing."""
    # Symbols of before MXNet 0.12 have `attr`.
    attributes = variable.get("attrs") or variable.get("attr")
    if not isinstance(attributes, dict):
        return None
    shape, flag = _SHAPE.match(str(attributes.get("__shape__", ""))), str(attributes.get("__dtype__", ""))
    dtype = _FLAGS.get(flag)
    if shape is None or dtype is None:
        return None
    lengths = [int(each) for each in shape[1].split(",") if each.strip()]
    # MXNet writes 0, or -1 with shapes of numpy's, for a length that is not known.
    return TensorType(variable["name"], dtype, tuple(each if each > 0 else ANY for each in lengths))
