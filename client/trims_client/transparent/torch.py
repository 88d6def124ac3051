"""`torch.load` of zip files: the original reads the pickle, and finds the storages in shared memory.

The original is called with `mmap=True` and asks `UntypedStorage.from_file` for the file's bytes; for this call it gets
those of the store. So unpickling, `weights_only`, `map_location`, aliases, strides and errors are the original's.
Storages of mapped files cannot be resized, as with `mmap=True`.
"""

from __future__ import annotations

import functools
import struct
import sys
import threading

from trims_client.transparent.file_bytes import bytes_of, check_same
from trims_client.transparent.outcomes import StepAsideError, is_proven, note_aside, note_shared
from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from trims_client.transparent.file_bytes import FileBytes

_LOADER = "torch.load"
#: Releases of torch that the adapter was proven with.
_PROVEN = ("2.13",)
#: End of a zip file's directory, the locator of its 64-bit form, that form, and an entry.
_END, _LOCATOR = struct.Struct("<4s4xHHIIH"), struct.Struct("<4s4xQ4x")
_END64, _ENTRY = struct.Struct("<4s20xQQQQ"), struct.Struct("<4s6xH16xHHH12x")
_MOST_COMMENT = 1 << 16
_serving = threading.local()


def adapt(torch: ModuleType) -> Callable[[], None]:
    """Put the adapter in the place of `torch.load`. Return what puts the original back."""
    if not is_proven(_LOADER, torch, _PROVEN):
        return lambda: None
    original, from_file = torch.serialization.load, torch.UntypedStorage.from_file
    if original.__globals__ is not vars(torch.serialization):
        note_aside(_LOADER, "another library has patched it")
        return lambda: None
    if torch.load is not original:  # calls the original as it was bound there, which may be found, or not at all
        note_aside(_LOADER, "another library has patched torch.load")

    @functools.wraps(original)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = _found(f, kwargs.get("mmap"))
        except StepAsideError as error:
            aside = error
        else:
            return _loaded(found, original, f, args, kwargs)
        # Outside of the block: an error of the original has no context of ours.
        return aside.load(_LOADER, lambda: original(f, *args, **kwargs))

    def served(filename: str, shared: bool = False, nbytes: int = 0) -> Any:
        found: FileBytes | None = getattr(_serving, "bytes", None)
        if found is None:
            return from_file(filename, shared, nbytes)
        _serving.bytes, _serving.used = None, True
        return torch.frombuffer(found.data, dtype=torch.uint8).untyped_storage()

    places = [(torch, "load"), (torch.serialization, "load")]
    undo_load = replace(places, original, load, kept=_in_tables(original))
    undo_bytes = replace([(torch.UntypedStorage, "from_file")], from_file, served)
    return lambda: (undo_load(), undo_bytes())[0]


def _in_tables(original: object) -> int:
    """Return how often TorchScript's table of functions has the original."""
    return sum(each[0] is original for each in getattr(sys.modules.get("torch.jit._builtins"), "_builtin_ops", ()))


def _found(f: Any, mmap: object) -> FileBytes:
    if mmap is not None:
        raise StepAsideError("mmap is stated")
    found = bytes_of(f)
    if not _is_stored_zip(found.data):
        raise StepAsideError("no zip file of stored members")
    return found


def _loaded(found: FileBytes, original: Any, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _serving.bytes, _serving.used = found, False
    try:
        made = original(f, *args, **{**kwargs, "mmap": True})
        used = _serving.used
    finally:
        _serving.bytes = None
    if not used:  # such as TorchScript: the original has read the file itself
        note_aside(_LOADER, "the bytes were not asked for")
        return made
    try:
        check_same(found.path, found.identity)
    except StepAsideError as error:
        aside = error
    else:
        note_shared(_LOADER, found.data.nbytes)
        return made
    return aside.load(_LOADER, lambda: original(f, *args, **kwargs))


def _is_stored_zip(data: memoryview) -> bool:
    """Return whether this is a zip file whose members all lie in it as they are: others cannot be mapped."""
    if bytes(data[:4]) != b"PK\x03\x04":
        return False
    tail = bytes(data[-_MOST_COMMENT - _END.size :])
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        return False
    _, _, count, size, offset, _ = _END.unpack_from(tail, at)
    where = len(data) - len(tail) + at - _LOCATOR.size
    if where >= 0 and bytes(data[where : where + 4]) == b"PK\x06\x07":
        (_, end64) = _LOCATOR.unpack_from(data, where)
        if end64 + _END64.size > len(data):
            return False
        _, _, count, size, offset = _END64.unpack_from(data, end64)
    directory, at = bytes(data[offset : offset + size]), 0
    for _ in range(count):
        if len(directory) - at < _ENTRY.size + 4:
            return False
        magic, method, *lengths = _ENTRY.unpack_from(directory, at)
        if magic != b"PK\x01\x02" or method != 0:
            return False
        at += 46 + sum(lengths)
    return True
