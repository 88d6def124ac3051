"""`numpy.load` of `.npy` files: an array over shared memory, copy-on-write."""

from __future__ import annotations

import functools
import io
import math
import sys

from trims_client.transparent.file_bytes import bytes_of
from trims_client.transparent.outcomes import StepAsideError, note_aside, note_shared
from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_LOADER = "numpy.load"
#: Arguments that change nothing for plain numbers, nor does a `mmap_mode` of None.
_KNOWN = {"allow_pickle", "encoding", "fix_imports", "mmap_mode"}
_ENCODINGS = ("ASCII", "latin1", "bytes")
_MAGIC = b"\x93NUMPY"
#: Functions of `numpy.lib.format` that the adapter calls.
_READERS = ("read_magic", "read_array_header_1_0", "read_array_header_2_0")
#: Bytes in which headers end as a rule; longer ones are the original's.
_HEADER_BYTES = 10_000


def adapt(numpy: ModuleType) -> Callable[[], None]:
    """Put the adapter in the place of `numpy.load`. Return what puts the original back."""
    original = numpy.load
    if not all(hasattr(numpy.lib.format, name) for name in _READERS):
        note_aside(_LOADER, f"numpy {numpy.__version__} is not known")
        return lambda: None

    home = sys.modules.get(getattr(original, "__globals__", {}).get("__name__", ""))
    if home is None or not home.__name__.startswith("numpy."):  # it may read what is no file of numpy's
        note_aside(_LOADER, "another library has patched it")
        return lambda: None

    @functools.wraps(original)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if args or kwargs.keys() - _KNOWN or kwargs.get("mmap_mode") is not None:
                raise StepAsideError("an argument that the adapter does not know")
            if kwargs.get("encoding", "ASCII") not in _ENCODINGS:
                raise StepAsideError("an encoding that numpy refuses")
            found = bytes_of(file)
            made = _array(numpy, found.data)
        except StepAsideError as error:
            aside = error
        else:
            note_shared(_LOADER, found.data.nbytes)
            return made
        # Outside of the block: an error of the original has no context of ours.
        return aside.load(_LOADER, lambda: original(file, *args, **kwargs))

    return replace([(numpy, "load"), (home, "load")], original, load)


def _array(numpy: ModuleType, data: memoryview) -> Any:
    """Return the array of a file in numpy's format, writable. Raises StepAsideError for what is not plain numbers."""
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise StepAsideError("no .npy file")
    header, formats = io.BytesIO(data[:_HEADER_BYTES]), numpy.lib.format
    try:
        version = formats.read_magic(header)
        read = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}[version]
        shape, fortran, dtype = read(header)
    except (KeyError, ValueError, EOFError) as error:
        raise StepAsideError("a header that the original reads") from error
    at, count = header.tell(), math.prod(shape)
    if dtype.hasobject or not count or at + count * dtype.itemsize > data.nbytes or at % dtype.alignment:
        raise StepAsideError("no array of plain numbers")
    made = numpy.frombuffer(data, dtype, count, at)
    return made.reshape(shape[::-1]).transpose() if fortran else made.reshape(shape)
