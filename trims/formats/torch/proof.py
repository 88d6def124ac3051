"""Proof that the module which an image gives is the one that its builder and `load_state_dict` give.

Both modules are walked side by side, through all that they hold. Tensors are compared bit for bit, with dtype, strides,
`requires_grad` and which of them are one; two that lie at one address are not read. Of objects that are no modules,
what both have is compared, because pickling leaves caches out.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import types
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trims.formats.torch.mapped import TORCH_DTYPES
from trims.image.descriptors import lacks_descriptors
from trims.image.torch_loading import restride

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims.image.plan import SourceTensor

#: Attributes of modules whose keys count all hooks of the process.
_HOOKS = "_hooks"
#: Attributes of modules that are left out of the names of what they hold.
_TABLES = ("_parameters", "_buffers", "_modules")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, torch.device, torch.layout)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def why_other(made: torch.nn.Module, wanted: torch.nn.Module) -> str | None:
    """Return what an image's module has otherwise than the wanted one, in a sentence; None if they are alike."""
    walk = _Walk()
    walk.add(made, wanted, "")
    while walk.left:
        one, other, where = walk.left.popleft()
        if difference := walk.compare(one, other, where):
            return f"{where.lstrip('.') or 'the module'} {difference}"
    return None


class NoSkeletonError(Exception):
    """Error for a module that cannot be carried as a pickle; the message says why."""


@contextlib.contextmanager
def as_no_skeleton(module: torch.nn.Module) -> Iterator[None]:
    """Raise NoSkeletonError for whatever the code of a module's author raises when it is pickled or unpickled."""
    try:
        yield
    except (MemoryError, NoSkeletonError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and lacks_descriptors(error):
            raise
        raise NoSkeletonError(f"the module {type(module).__name__} cannot be pickled ({first_line(error)})") from error


class Recorder(pickle.Unpickler):
    """Unpickler of a skeleton, which records the modules that it names."""

    def __init__(self, body: bytes, tensors: Mapping[int, torch.Tensor] | Sequence[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(body))
        self._tensors = tensors
        self.modules: set[str] = set()

    def persistent_load(self, pid: int) -> torch.Tensor:
        """See `pickle.Unpickler`."""
        return self._tensors[pid]

    def find_class(self, module: str, name: str) -> Any:
        """See `pickle.Unpickler`."""
        self.modules.add(module)
        return super().find_class(module, name)


def as_sessions(
    sources: Sequence[SourceTensor],
    attributes: Mapping[str, Any],
    own: Mapping[int, torch.Tensor],
    given: Mapping[str, torch.Tensor] | None,
) -> list[torch.Tensor]:
    """Return a skeleton's tensors by their numbers as sessions make them, without memory where none are given.

    Args:
        sources: Tensors of the image.
        own: Tensors whose values are the module's own, by their numbers.
        given: The artifact's tensors by name; None for none.
    """
    plain = {*attributes["buffers"], *attributes["constants"]}
    frozen, found = set(attributes["frozen"]), []
    for number, source in enumerate(sources):
        if number in own:
            tensor = own[number].detach()
        elif given is None:
            tensor = torch.empty(source.shape, dtype=TORCH_DTYPES[source.dtype], device="meta")
        else:
            tensor = given[source.name if source.name in given else source.tied_to or source.name]
        row_major = tensor.contiguous()
        found.append(row_major if source.name in plain else torch.nn.Parameter(row_major, source.name not in frozen))
    restride(found, [source.name for source in sources], attributes.get("strides", {}))
    return found


class _Walk:
    """Pairs that are still to be compared, and which object of one module is which of the other."""

    def __init__(self) -> None:
        self.left: deque[tuple[Any, Any, str]] = deque()
        self._twins: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._alive: list[Any] = []

    def add(self, made: Any, wanted: Any, where: str) -> None:
        self.left.append((made, wanted, where))

    def compare(self, made: Any, wanted: Any, where: str) -> str | None:
        """Return how two objects differ by themselves; what they hold is left to be compared."""
        if type(made) is not type(wanted):
            return f"is a {type(made).__name__} in the image and a {type(wanted).__name__} when it is loaded"
        if isinstance(made, _PLAIN):
            return None if made == wanted or made != made else _another(made, wanted)  # noqa: PLR0124 - not a number
        if id(made) in self._twins or id(wanted) in self._back:
            one = self._twins.get(id(made)) == id(wanted)
            return None if one or not isinstance(made, (torch.Tensor, torch.nn.Module)) else "is shared otherwise"
        self._twins[id(made)], self._back[id(wanted)] = id(wanted), id(made)
        self._alive += [made, wanted]
        if isinstance(made, torch.Tensor):
            return _other_tensor(made, wanted)
        if isinstance(made, torch.nn.Module):
            return self._module(made, wanted, where)
        return None if made is wanted else self._other(made, wanted, where)

    def _module(self, made: torch.nn.Module, wanted: torch.nn.Module, where: str) -> str | None:
        ours, theirs = vars(made), vars(wanted)
        if ours.keys() != theirs.keys():
            return (
                f"has the attributes {sorted(ours.keys() ^ theirs.keys())} only in the image or only when it is loaded"
            )
        for name, value in ours.items():
            at = where if name in _TABLES else f"{where}.{name}"
            if name.endswith(_HOOKS) and isinstance(value, dict):
                self.add(list(value.values()), list(theirs[name].values()), at)
            else:
                self.add(value, theirs[name], at)
        return None

    def _other(self, made: Any, wanted: Any, where: str) -> str | None:
        if isinstance(made, dict):
            return self._dict(made, wanted, where)
        if isinstance(made, (list, tuple, deque)):
            return self._each(list(made), list(wanted), where)
        if isinstance(made, (set, frozenset)):
            return None if len(made) == len(wanted) else _another(made, wanted)
        if isinstance(made, (np.ndarray, np.generic, types.FunctionType)):
            return None if _fixed(made) == _fixed(wanted) else _another(made, wanted)
        for ours, theirs in zip(_parts(made), _parts(wanted), strict=True):
            self.add(ours, theirs, where)
        return self._object(made, wanted, where)

    def _dict(self, made: dict[Any, Any], wanted: dict[Any, Any], where: str) -> str | None:
        if len(made) != len(wanted):
            return f"has {len(made)} entries in the image and {len(wanted)} when it is loaded"
        for (ours, value), (theirs, other) in zip(made.items(), wanted.items(), strict=True):
            name = f"{where}.{ours}" if isinstance(ours, str) else where
            self.add(ours, theirs, f"a name in {where}")
            self.add(value, other, name)
        return None

    def _each(self, made: list[Any], wanted: list[Any], where: str) -> str | None:
        if len(made) != len(wanted):
            return f"has {len(made)} entries in the image and {len(wanted)} when it is loaded"
        for number, (ours, theirs) in enumerate(zip(made, wanted, strict=True)):
            self.add(ours, theirs, f"{where}[{number}]")
        return None

    def _object(self, made: Any, wanted: Any, where: str) -> str | None:
        ours, theirs = _attributes(made), _attributes(wanted)
        for name in ours.keys() & theirs.keys():
            self.add(ours[name], theirs[name], f"{where}.{name}")
        return None


def _fixed(value: Any) -> tuple[Any, ...]:
    """Return what an array or a function is known by."""
    if isinstance(value, types.FunctionType):
        return value.__module__, value.__qualname__
    return value.dtype, value.shape, value.tobytes()


def _parts(value: Any) -> tuple[Any, ...]:
    """Return what an object holds outside its attributes."""
    if isinstance(value, weakref.ref):
        return (value(),)
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    return ()


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _other_tensor(made: torch.Tensor, wanted: torch.Tensor) -> str | None:
    for what in ("dtype", "shape", "layout", "device", "requires_grad"):
        ours, theirs = getattr(made, what), getattr(wanted, what)
        if ours != theirs:
            return f"has {what} {ours} in the image and {theirs} when it is loaded"
    if made is wanted or made.layout is not torch.strided or not made.numel():
        return None
    if made.stride() != wanted.stride():
        return f"has the strides {made.stride()} in the image and {wanted.stride()} when it is loaded"
    return None if _same_bits(made.detach(), wanted.detach()) else "has other values than load_state_dict gives it"


def _same_bits(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    if made.is_meta or made.data_ptr() == wanted.data_ptr():
        return not made.is_meta
    integer = _INTEGERS.get(made.element_size())
    if integer is None or made.is_conj() or made.is_neg() or wanted.is_conj() or wanted.is_neg():
        return bool(torch.equal(made, wanted))
    return bool(torch.equal(made.view(integer), wanted.view(integer)))


def _another(made: Any, wanted: Any) -> str:
    return f"is {made!r:.60} in the image and {wanted!r:.60} when it is loaded"


def first_line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return str(error).partition("\n")[0][:500] or type(error).__name__
