"""MXNet's `.params` files read without MXNet: dense arrays of 0.12 and later, as a host saves them, and no others."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from trims_client.transparent.outcomes import StepAsideError

#: A file begins with this: see `trims.formats.mxnet.converter`, which the client does not import.
_FILE, _FILE_MAGIC = struct.Struct("<QQQ"), (0x112, 0)
#: Dense array of MXNet 0.12 and later, without numpy's shapes: magic, storage type, dimensions.
_ARRAY, _ARRAY_MAGIC, _MAX_DIMENSIONS = struct.Struct("<Iii"), (0xF993FAC9, 0), 32
#: Device, its number, and mshadow's type flag; arrays of a GPU are the original's.
_TYPE, _LENGTH, _HOST = struct.Struct("<iii"), struct.Struct("<Q"), 1
#: Data types by flag, and bytes of an element.
_DTYPES = (("F32", 4), ("F64", 8), ("F16", 2), ("U8", 1), ("I32", 4), ("I8", 1), ("I64", 8), ("BOOL", 1))
#: Bytes of an array, on average, below which the original takes as long.
_LEAST_BYTES = 1 << 15


class Stored(NamedTuple):
    """Array of a file.

    Attributes:
        begin: First byte of the array in the file.
        end: First byte behind it.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def contents(data: memoryview) -> tuple[list[Stored], list[str]]:
    """Return arrays, and their names if they have any. Raises StepAsideError for what the original is to read."""
    try:
        *magic, count = _FILE.unpack_from(data)
        if tuple(magic) != _FILE_MAGIC:
            raise StepAsideError("no list of arrays")
        if count * _LEAST_BYTES > data.nbytes:
            raise StepAsideError("many small arrays")
        arrays, at = [], _FILE.size
        for _ in range(count):
            stored, at = _array(data, at)
            arrays.append(stored)
        (named,), at, names = _LENGTH.unpack_from(data, at), at + _LENGTH.size, []
        if named not in (0, count):
            raise StepAsideError("names of other arrays")
        for _ in range(named):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + length
            names.append(bytes(data[at - length : at]).decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise StepAsideError("a file that the original reads") from error
    if at != data.nbytes or any("\0" in name for name in names):  # MXNet ends a name there
        raise StepAsideError("a file that the original reads")
    return arrays, names


def _array(data: memoryview, at: int) -> tuple[Stored, int]:
    """Return the array at an offset, and the offset behind it."""
    *magic, rank = _ARRAY.unpack_from(data, at)
    if tuple(magic) != _ARRAY_MAGIC or not 0 < rank <= _MAX_DIMENSIONS:
        raise StepAsideError("an array that is sparse, empty or of another release")
    shape = struct.unpack_from(f"<{rank}q", data, at + _ARRAY.size)
    at += _ARRAY.size + 8 * rank
    device, _, flag = _TYPE.unpack_from(data, at)
    if device != _HOST or not 0 <= flag < len(_DTYPES) or min(shape) < 1:
        raise StepAsideError("an array of another device or type")
    dtype, size = _DTYPES[flag]
    begin, end = at + _TYPE.size, at + _TYPE.size + math.prod(shape) * size
    if end > data.nbytes:
        raise StepAsideError("a file that the original reads")
    return Stored(dtype, shape, begin, end), end
