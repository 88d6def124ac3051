"""Reasons why a checkpoint holds more than tensors, and how to save its weights alone.

`torch.load(weights_only=True)` stops at the first class that it does not allow and names it, but not where it is. The
pickle is read again here with a stand-in for each class and function, so nothing that it names is imported or run.
Called in a converter child, whose limits hold for it.
"""

from __future__ import annotations

import pickle
import re
import shlex
import zipfile
from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from trims.formats.torch.state import Key, places_of, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

_CLASS = re.compile(r"(?:GLOBAL|class|function) ([A-Za-z_]\w*(?:\.\w+)+)")
_KNOWN = {"multiarray.scalar": "a NumPy scalar", "multiarray._reconstruct": "a NumPy array"}
_TENSOR = "torch._utils._rebuild_"
#: Largest pickle that is read, in bytes: the largest published ones have some MB.
_MAX_PICKLE_BYTES = 64 << 20
_MAX_REASON = 500
#: Values before the checkpoint's own in a legacy file: magic number, protocol and machine.
_LEGACY_VALUES = 3
_SHOWN_DEPTH = 4
#: Number of a checkpoint's parts that a message names.
_SHOWN_PLACES = 10


def explain(path: Path, message: str) -> str:
    """Return why torch refuses a checkpoint and what to do.

    Args:
        message: What `torch.load` said, without colours.
    """
    found = _CLASS.search(message)
    name = found[1] if found else ""
    value = _inert(path)
    what = next((f"{known} ({name})" for end, known in _KNOWN.items() if name.endswith(end)), name)
    if not what:
        reason = message.rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0][:_MAX_REASON]
    elif isinstance(value, _Value) and not _is_tensor(value):
        reason = f"it is a whole {value.kind}" + ("" if name == value.kind else f", which holds {what}")
    else:
        where = _where(value, name)
        reason = f"it holds {what}" + (f" under {'.'.join(map(str, where))!r:.200}" if where else "")
    loaded = f"torch.load({str(path)!r}, map_location='cpu', weights_only=False)"
    weights, others = _weights_in(value)
    if not weights:
        return f"{reason}; no tensors were found in it"
    more = f" (of its parts the first; the others are {', '.join(others)})" if others else ""
    return f"{reason}; if you trust its author, save its weights alone{more}: {_saving(path, weights, loaded)}"


def _weights_in(value: Any) -> tuple[str, list[str]]:
    """Return an expression for the weights of a checkpoint `c`, and keys of others; both empty if there are none."""
    if isinstance(value, _Value):
        return "c.state_dict()", []
    if value is None or (isinstance(value, dict) and any(map(_is_tensor, value.values()))):
        return "{k: v for k, v in c.items() if torch.is_tensor(v)}", []
    if places := places_of(value, _is_tensor):
        return _item(places[0]), [written(each) for each in places[1:_SHOWN_PLACES]]
    if modules := [key for key, each in value.items() if _is_module(each)] if isinstance(value, dict) else []:
        return f"c[{modules[0]!r}].state_dict()", [str(each) for each in modules[1:_SHOWN_PLACES]]
    arrays = [()] if isinstance(value, dict) and any(map(_is_array, value.values())) else places_of(value, _is_array)
    if arrays:
        each = "{k: torch.as_tensor(v) for k, v in " + _item(arrays[0]) + ".items() if hasattr(v, 'dtype')}"
        return each, [written(other) for other in arrays[1:_SHOWN_PLACES]]
    return "", []


def _item(key: Sequence[Key]) -> str:
    return "c" + "".join(f"[{each!r}]" for each in key)


def _saving(path: Path, weights: str, loaded: str = "") -> str:
    """Return a command that saves weights as a file of their own."""
    target = path.with_name(f"{path.stem}-weights.pt")
    load = f"c = {loaded}; " if loaded else ""
    return f"python -c {shlex.quote(f'import torch; {load}torch.save({weights}, {str(target)!r})')}"


def saving_torchscript(path: Path) -> str:
    """Return why a TorchScript archive is refused, and how to save its weights."""
    weights = f"torch.jit.load({str(path)!r}, map_location='cpu').state_dict()"
    return f"it is a TorchScript archive, a program and its weights; save the weights alone: {_saving(path, weights)}"


def is_torchscript(path: Path) -> bool:
    """Return whether a file is what `torch.jit.save` wrote, which `torch.load` would run."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


class _Value:
    """Stand-in for a value of any class, or for the result of any function."""

    kind: ClassVar[str] = ""
    inside: list[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.inside = [*args, *kwargs.values()]
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept the arguments of the class or function that this object stands for; `__new__` keeps them."""

    def __setstate__(self, state: Any) -> None:
        self.inside.append(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.inside.append(value)

    def append(self, value: Any) -> None:
        """Keep a value that the pickle of a list appends."""
        self.inside.append(value)

    def extend(self, values: Any) -> None:
        """Keep values that the pickle of a list appends at once."""
        self.inside.extend(values)

    add = append


class _Inert(pickle.Unpickler):
    """Unpickler of dicts, lists, numbers and texts, which makes a `_Value` for every class and function named."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for any class but the dict of state dicts."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return _named(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Return the class of a module, which legacy files keep with its source; nothing for a storage."""
        return pid[1] if isinstance(pid, tuple) and pid[:1] == ("module",) else None


@cache
def _named(kind: str) -> type[_Value]:
    return type("_Named", (_Value,), {"kind": kind})


def _inert(path: Path) -> Any:
    """Return a checkpoint's value with stand-ins; None if it cannot be read."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                if archive.getinfo(name).file_size > _MAX_PICKLE_BYTES:
                    return None
                with archive.open(name) as member:
                    return _Inert(member).load()
        with path.open("rb") as file:
            for _ in range(_LEGACY_VALUES):
                _Inert(file).load()
            return _Inert(file).load()
    except Exception:  # noqa: BLE001 - a broken or hostile pickle: then its class is named without its place
        return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, _Value) and value.kind.startswith(_TENSOR)


def _is_array(value: Any) -> bool:
    return isinstance(value, _Value) and value.kind.endswith("multiarray._reconstruct")


def _is_module(value: Any) -> bool:
    return isinstance(value, _Value) and any(isinstance(each, dict) and "_modules" in each for each in value.inside)


def _where(value: Any, name: str) -> tuple[Key, ...]:
    """Return the keys under which the first value of a class lies; empty if it is not found."""
    waiting: list[tuple[tuple[Key, ...], Any]] = [((), value)]
    seen: set[int] = set()
    while waiting:
        keys, each = waiting.pop()
        if id(each) in seen:
            continue
        if isinstance(each, _Value) and each.kind == name:
            return keys
        seen.add(id(each))
        waiting.extend(reversed([((*keys, *key)[:_SHOWN_DEPTH], inner) for key, inner in _inside(each)]))
    return ()


def _inside(value: Any) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yield what a value holds, each with its key; what a class holds has that of its object."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield ((key,) if isinstance(key, (str, int)) else ()), each
            if isinstance(key, _Value):
                yield (), key
    elif isinstance(value, (list, tuple)):
        yield from (((number,), each) for number, each in enumerate(value))
    elif isinstance(value, _Value):
        yield from (((), each) for each in value.inside)
    elif isinstance(value, (set, frozenset)):
        yield from (((), each) for each in value)
