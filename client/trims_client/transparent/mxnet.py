"""`mxnet.nd.load` of dense arrays: NDArrays over shared memory, copy-on-write.

Each function of MXNet that loads parameters ends in `mxnet.nd.load`: `load_checkpoint`, `Module.load`, gluon's
`load_parameters` and `SymbolBlock.imports`. Gluon and `Module` copy what they load: see `mxnet_copies`.
"""

from __future__ import annotations

import functools
import math
import os
import struct
import sys
from typing import NamedTuple

from trims_client.transparent.file_bytes import bytes_of
from trims_client.transparent.outcomes import StepAsideError, note_aside, note_shared
from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_LOADER = "mxnet.nd.load"
#: Releases of MXNet that the adapter was proven with.
_PROVEN = ("1.9.1",)
#: Modules that have the original under a name of theirs.
_PLACES = (
    ("mxnet.ndarray", "load"),
    ("mxnet.ndarray.utils", "load"),
    ("mxnet.initializer", "load"),
    ("mxnet.contrib.quantization", "nd_load"),
)
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
#: Names that MXNet takes for its standard streams.
_STREAMS = ("stdin", "stdout")


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


def adapt(mxnet: ModuleType) -> Callable[[], None]:
    """Put the adapter in the place of `mxnet.nd.load`. Return what puts the original back."""
    if mxnet.__version__ not in _PROVEN:
        note_aside(_LOADER, f"mxnet {mxnet.__version__} is not known")
        return lambda: None
    original = mxnet.ndarray.utils.load
    if original.__globals__ is not vars(mxnet.ndarray.utils):
        note_aside(_LOADER, "another library has patched it")
        return lambda: None
    from trims_client.transparent import mxnet_copies

    @functools.wraps(original)
    def load(fname: Any) -> Any:
        try:
            if not _is_plain_path(fname):
                raise StepAsideError("not a path")
            if mxnet.is_np_shape():
                raise StepAsideError("numpy's shapes")
            found = bytes_of(fname)
            arrays, names = _contents(found.data)
        except StepAsideError as error:
            aside = error
        else:
            note_shared(_LOADER, found.data.nbytes)
            made = mxnet_copies.Load(found, arrays, names).arrays()
            return dict(zip(names, made, strict=True)) if names else made
        # Outside of the block: an error of the original has no context of ours.
        return aside.load(_LOADER, lambda: original(fname))

    places = [(sys.modules[module], name) for module, name in _PLACES if module in sys.modules]
    undo_load, undo_copies = replace(places, original, load), mxnet_copies.adapt()
    return lambda: (undo_load(), undo_copies())[0]


def _is_plain_path(fname: Any) -> bool:
    """Return whether MXNet opens the file that Python has by this name."""
    if not isinstance(fname, str) or "://" in fname or fname in _STREAMS:
        return False
    try:
        return fname.encode() == os.fsencode(fname)
    except UnicodeEncodeError:
        return False


def _contents(data: memoryview) -> tuple[list[Stored], list[str]]:
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
