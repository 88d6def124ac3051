"""`safetensors.numpy.load_file`: arrays over shared memory, copy-on-write. For torch the library maps files itself."""

from __future__ import annotations

import functools
import json

from trims_client.transparent.file_bytes import bytes_of, check_same
from trims_client.transparent.outcomes import StepAsideError, note_aside, note_shared
from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_LOADER = "safetensors.numpy.load_file"
#: Bytes of the length that a file begins with.
_LENGTH = 8


def adapt(numpy_api: ModuleType) -> Callable[[], None]:
    """Put the adapter in the place of `safetensors.numpy.load_file`. Return what puts the original back."""
    original = numpy_api.load_file
    if not all(hasattr(numpy_api, name) for name in ("_getdtype", "safe_open", "np")):
        note_aside(_LOADER, "this release of safetensors is not known")
        return lambda: None

    @functools.wraps(original)
    def load_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if args or kwargs:
                raise StepAsideError("an argument that the adapter does not know")
            found = bytes_of(filename)
            with numpy_api.safe_open(filename, framework="np") as file:  # checks the file, and knows the order
                made = _arrays(numpy_api, file, found.data)
                check_same(found.path, found.identity)
        except StepAsideError as error:
            aside = error
        except Exception as error:  # noqa: BLE001 - the library's own, which the original raises again
            aside = StepAsideError(f"safetensors refuses it: {type(error).__name__}")
        else:
            note_shared(_LOADER, found.data.nbytes)
            return made
        # Outside of the block: an error of the original has no context of ours.
        return aside.load(_LOADER, lambda: original(filename, *args, **kwargs))

    return replace([(numpy_api, "load_file")], original, load_file)


def _arrays(numpy_api: ModuleType, file: Any, data: memoryview) -> dict[str, Any]:
    """Return the arrays of a file by name. Raises KeyError for a dtype that numpy lacks."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    header, found = json.loads(bytes(data[_LENGTH:end])), {}
    for name in file.offset_keys():
        described = header[name]
        dtype = numpy_api.np.dtype(numpy_api._getdtype(described["dtype"]))
        first, last = (end + each for each in described["data_offsets"])
        if first == last or first % dtype.alignment:
            found[name] = file.get_tensor(name)
        else:
            found[name] = numpy_api.np.frombuffer(data[first:last], dtype).reshape(described["shape"])
    return found
