"""The header of a numpy array in a file, read without numpy: what arrays in place are found from.

Read is the text that numpy itself writes, and nothing else: a Python literal can say the same in many ways, which only
numpy has to understand. Standard library only. Not covered: arrays that are not little endian and row-major, and npy
version 3, whose names of fields are not needed for numbers.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from trims.core.errors import NotInPlaceError
from trims.core.layout import DTYPE_BYTES, MAX_DIMENSIONS, element_count

MAGIC = b"\x93NUMPY"
#: Dtype for each of numpy's kinds and item sizes. ml_dtypes' types save as raw bytes and cannot be recognised: not
#: here.
DTYPES = {
    "b1": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "u4": "U32", "i4": "I32", "u8": "U64", "i8": "I64",
    "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64",
}  # fmt: skip
#: Bytes of the header's length, by version.
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4}
_SHAPE = r"\(|\([0-9]+,|\([0-9]+(?:, [0-9]+)+"
_HEADER = re.compile(
    rf"\{{'descr': '(?P<order>[<>|])(?P<kind>[a-zA-Z][0-9]+)', 'fortran_order': (?P<fortran>True|False), "
    rf"'shape': (?P<shape>{_SHAPE})\), \}} *\n"
)
#: Header bytes at most: more dimensions or digits than any array has.
_MAX_HEADER_BYTES = 4096
_MAX_DIGITS = 18


class StoredArray(NamedTuple):
    """An array that lies in a file as it is in memory; `offset` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


def read_array(fd: int, begin: int, end: int) -> StoredArray:
    """Return the array whose header and numbers are these bytes of a file.

    Raises NotInPlaceError for one that is broken, or that only numpy can read or bring into order.
    """
    head = os.pread(fd, min(_MAX_HEADER_BYTES, end - begin), begin)
    width = _LENGTH_BYTES.get(head[len(MAGIC) : len(MAGIC) + 2])
    if not head.startswith(MAGIC) or width is None:
        raise NotInPlaceError("it does not begin as an array of numpy's does")
    at = len(MAGIC) + 2 + width
    length = int.from_bytes(head[at - width : at], "little")
    found = _HEADER.fullmatch(head[at : at + length].decode("latin-1"))
    if found is None or at + length > len(head):
        raise NotInPlaceError("its header is not as numpy writes it for numbers")
    shape = _shape(found["shape"])
    dtype = _dtype(found["order"], found["kind"], column_major=found["fortran"] == "True")
    if begin + at + length + element_count(shape) * DTYPE_BYTES[dtype] != end:
        stored = end - begin - at - length
        raise NotInPlaceError(f"its {stored} bytes are not those of an array of {dtype}{list(shape)}")
    return StoredArray(dtype, shape, begin + at + length)


def _shape(text: str) -> tuple[int, ...]:
    extents = re.findall("[0-9]+", text)
    if len(extents) > MAX_DIMENSIONS or any(len(extent) > _MAX_DIGITS for extent in extents):
        raise NotInPlaceError("no array has the shape that its header says")
    return tuple(map(int, extents))


def _dtype(order: str, kind: str, *, column_major: bool) -> str:
    dtype = DTYPES.get(kind)
    if dtype is None:
        raise NotInPlaceError(f"its dtype {kind} is none of an image")
    if order == ">":
        raise NotInPlaceError("its numbers are big endian")
    if column_major:
        raise NotInPlaceError("its order is column-major")
    return dtype
