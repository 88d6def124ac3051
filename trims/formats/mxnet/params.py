"""MXNet's `.params` file read without MXNet: names, dtypes, shapes and offsets, never the numbers.

A list of dense arrays as `mx.nd.save` writes it, all four generations: before 0.12 (dimensions of 32 bits),
V1 (of 64), V2 (storage type) and V3 (numpy shapes). Source: `NDArray::Save` and `NDArray::Load` of MXNet
1.9.1, src/ndarray/ndarray.cc. Not covered: sparse arrays, arrays that hold nothing.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.image.source import SourceFile, open_source

if TYPE_CHECKING:
    from pathlib import Path

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
