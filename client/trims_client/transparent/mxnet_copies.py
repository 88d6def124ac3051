"""Copies that gluon and `Module` make of loaded arrays: further copy-on-write mappings of the same bytes.

The copy of an array that nothing has written since it was loaded has the file's bytes. The kernel knows: a page of a
private mapping that was written is no page of a file any more. An array that was written is copied as ever.

`Module.bind` makes two sets of arrays and fills them with zeros. Where the latest load has arrays of these names, types
and shapes, the executor's have the loaded bytes from the start, as `Module.set_params` will ask for; only then may a
module run. The module's own, and gradients of loaded parameters, are zeros that take no memory until they are written.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import math
import mmap
import threading
import weakref
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.executor import Executor
from mxnet.gluon.parameter import Parameter
from mxnet.module import module as modules

from trims_client.frameworks._mxnet_arrays import TYPES, array_over, memory_over
from trims_client.transparent.file_bytes import bytes_of
from trims_client.transparent.outcomes import StepAsideError
from trims_client.transparent.replaced import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims_client.transparent.file_bytes import FileBytes
    from trims_client.transparent.mxnet_file import Stored

_NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "uint8": "U8", "int8": "I8", "int32": "I32",
          "int64": "I64", "bool": "BOOL"}  # fmt: skip
#: Bytes of arrays that are copied as quickly.
_LEAST_BYTES = 1 << 16
#: Arguments with which a module has an executor made.
_ASKED = {"ctx", "grad_req", "type_dict", "shared_arg_names", "shared_exec", "group2ctx", "shared_buffer"}
#: Bits of an entry of /proc/self/pagemap: present or swapped out, and of a file.
_USED, _OF_FILE = np.uint64(3 << 62), np.uint64(1 << 61)
#: Memory of live arrays by address; its `place` is the load and the first byte there.
_memories: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()
_binding = threading.local()
#: Executors whose arrays of these names have loaded bytes, and that were not given any yet.
_ahead: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class Load:
    """One load of a file, and further copies of its arrays."""

    #: The latest that has live arrays.
    latest: Callable[[], Load | None] = staticmethod(lambda: None)

    def __init__(self, found: FileBytes, stored: Sequence[Stored], names: Sequence[str]) -> None:
        self.path, self.identity = found.path, found.identity
        self._data = found.data
        self._stored = stored
        self.named = dict(zip((name.partition(":")[2] for name in names), stored, strict=False))
        self._spares: list[tuple[memoryview, set[int]]] = []
        self._is_lost = False
        Load.latest = weakref.ref(self)

    def arrays(self) -> list[Any]:
        """Return the arrays, once."""
        data, self._data = self._data, memoryview(b"")
        return [self._array(data[each.begin : each.end], each.dtype, each.shape, each.begin) for each in self._stored]

    def copy(self, begin: int, nbytes: int, dtype: str, shape: Sequence[int]) -> Any:
        """Return an array with the file's bytes in memory of its own. Raises StepAsideError."""
        with _lock:
            spare = next((each for each in self._spares if begin not in each[1]), None)
            if spare is None:
                self._spares.append(spare := (self._mapped_again(), set()))
            spare[1].add(begin)
        return self._array(spare[0][begin : begin + nbytes], dtype, shape, begin)

    def _mapped_again(self) -> memoryview:
        if self._is_lost:  # once is enough: there are many arrays
            raise StepAsideError("changed meanwhile")
        self._is_lost = True
        found = bytes_of(self.path)
        if found.identity != self.identity:
            raise StepAsideError("changed meanwhile")
        self._is_lost = False
        return found.data

    def _array(self, data: memoryview, dtype: str, shape: Sequence[int], begin: int) -> Any:
        memory = memory_over(data, dtype)
        memory.place = self, begin
        _memories[ctypes.addressof(memory)] = memory
        return array_over(memory, dtype, shape)


def adapt() -> Callable[[], None]:
    """Put the adapters in their places. Return what puts the originals back."""
    undo = [
        replace([(owner, name)], original := vars(owner)[name], adapter(original), method=isinstance(owner, type))
        for owner, name, adapter in (
            (Parameter, "_init_impl", _init_impl),
            (Parameter, "_init_grad", _init_grad),
            (modules.Module, "bind", _bind),
            (modules.Module, "init_params", _init_params),
            (modules, "zeros", _zeros),
            (mx.symbol.Symbol, "simple_bind", _simple_bind),
            (Executor, "copy_params_from", _copy_params_from),
            (Executor, "reshape", _reshape),
        )
    ]

    def put_back() -> None:
        for each in undo:
            each()

    return put_back


def _place(array: Any) -> tuple[Load, int, int, str] | None:
    """Return the load, the first byte, the size and the type of an array that has the file's bytes; else None."""
    if not _memories or type(array) is not mx.nd.NDArray or array.stype != "default" or mx.autograd.is_recording():
        return None
    dtype = _NAMES.get(np.dtype(array.dtype).name, "")
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    memory = _memories.get(address.value or 0)
    if memory is None or not dtype:
        return None
    array.wait_to_read()
    nbytes = array.size * np.dtype(array.dtype).itemsize
    if nbytes > len(memory) or not _is_unwritten(ctypes.addressof(memory), nbytes):
        return None
    return (*memory.place, nbytes, dtype)


def _is_unwritten(address: int, nbytes: int) -> bool:
    """Return whether no page of a private mapping of a file was written; False where the kernel does not say."""
    first, last = address // mmap.PAGESIZE, (address + nbytes - 1) // mmap.PAGESIZE
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(8 * first)
            found = np.frombuffer(file.read(8 * (last + 1 - first)), np.uint64)
    except OSError:
        return False
    return len(found) == last + 1 - first and not ((found & _USED != 0) & (found & _OF_FILE == 0)).any()


def _copy(array: Any) -> Any:
    """Return a copy that shares memory; None if the array is to be copied as ever."""
    place = _place(array)
    if place is None or array.context != mx.cpu():
        return None
    load, begin, nbytes, dtype = place
    try:
        return load.copy(begin, nbytes, dtype, array.shape)
    except StepAsideError:
        return None


class _Copied:
    """Stand-in for an array that gluon copies to contexts."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def copyto(self, context: Any) -> Any:
        made = _copy(self._array) if context == mx.cpu() else None
        return self._array.copyto(context) if made is None else made


def _init_impl(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_impl(self: Any, data: Any, ctx_list: Any) -> None:
        place = _place(data)
        with _bound_from(None if place is None else place[0]):
            original(self, _Copied(data), ctx_list)

    return init_impl


@contextlib.contextmanager
def _bound_from(load: Load | None) -> Iterator[None]:
    before, _binding.load = getattr(_binding, "load", None), load
    try:
        yield
    finally:
        _binding.load = before


def _bind(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bind(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _bound_from(Load.latest() if mx.current_context() == mx.cpu() else None):
            return original(self, *args, **kwargs)

    return bind


def _init_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_grad(self: Any) -> None:
        others = self.grad_req == "null" or self._grad_stype != "default"
        made = [] if others else [_lazy_zeros(each.shape, each.dtype, each.context) for each in self._data]
        if not made or any(each is None for each in made):
            original(self)
            return
        self._grad = made
        mx.autograd.mark_variables(self._check_and_get(self._data, list), made, self.grad_req)

    return init_grad


def _zeros(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zeros(shape: Any, *args: Any, **kwargs: Any) -> Any:
        others = args or kwargs.keys() - {"dtype", "stype"} or kwargs.get("stype", "default") != "default"
        made = None if others else _lazy_zeros(shape, kwargs.get("dtype") or "float32", mx.current_context())
        return original(shape, *args, **kwargs) if made is None else made

    return zeros


def _lazy_zeros(shape: Any, dtype: Any, context: Any) -> Any:
    """Return zeros that take no memory until they are written; None where MXNet is to make them."""
    name = _NAMES.get(np.dtype(dtype).name, "")
    nbytes = math.prod(shape) * TYPES[name][1] // 8 if name and isinstance(shape, tuple) else 0
    is_ours = getattr(_binding, "load", None) is not None and context == mx.cpu() and not mx.is_np_shape()
    if not is_ours or nbytes < _LEAST_BYTES:
        return None
    return array_over(memory_over(memoryview(mmap.mmap(-1, nbytes)), name), name, shape)


def _simple_bind(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def simple_bind(self: Any, *args: Any, **kwargs: Any) -> Any:
        load: Load | None = getattr(_binding, "load", None)
        arrays = {} if load is None or args or not kwargs.keys() >= _ASKED else _arrays_ahead(self, load, kwargs)
        if not arrays:
            return original(self, *args, **kwargs)
        names, given = [name for name in kwargs["shared_arg_names"] if name not in arrays], kwargs["shared_buffer"]
        made = original(self, **{**kwargs, "shared_arg_names": names, "shared_buffer": (buffer := {**given, **arrays})})
        given.update((name, array) for name, array in buffer.items() if name not in arrays)
        _ahead[made] = set(arrays)
        return made

    return simple_bind


def _arrays_ahead(symbol: Any, load: Load, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays of parameters of an executor for inference, as `Module.bind` asks for one, with loaded bytes."""
    requests = how["grad_req"]
    if how["ctx"] != mx.cpu() or how["shared_exec"] is not None or how["group2ctx"] is not None:
        return {}
    if not isinstance(requests, dict) or set(requests.values()) != {"null"} or mx.is_np_shape():
        return {}
    names, found = symbol.list_arguments(), {}
    shapes, _, _ = symbol.infer_shape_partial(**{name: each for name, each in how.items() if isinstance(each, tuple)})
    types, _, _ = symbol.infer_type_partial(**how["type_dict"])
    for name, shape, dtype in zip(names, shapes or (), types or (), strict=False):
        stored = load.named.get(name)
        if stored is None or name not in how["shared_arg_names"] or stored.end - stored.begin < _LEAST_BYTES:
            continue
        if (stored.shape, stored.dtype) == (shape, _NAMES.get(np.dtype(dtype).name)):
            with contextlib.suppress(StepAsideError):
                found[name] = load.copy(stored.begin, stored.end - stored.begin, stored.dtype, shape)
    return found


def _init_params(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return original(self, *args, **kwargs)
        loaded = given.get("arg_params")
        if isinstance(loaded, dict) and self.binded and not self.params_initialized:
            made = {name: _copy_for(own, loaded.get(name)) for name, own in self._arg_params.items()}
            copies = {name: each for name, each in made.items() if each is not None}
            self._arg_params.update(copies)
            given["arg_params"] = {**loaded, **copies}  # what the module has already, the original does not copy
        return original(**given)

    return init_params


def _copy_for(own: Any, loaded: Any) -> Any:
    """Return a copy of a loaded array in the place of a module's own; None if MXNet would convert or refuse it."""
    if type(own) is not type(loaded) or (own.shape, own.dtype, own.context) != (
        loaded.shape, loaded.dtype, loaded.context,
    ):  # fmt: skip
        return None
    return _copy(loaded) if own.size * np.dtype(own.dtype).itemsize >= _LEAST_BYTES else None


def _copy_params_from(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy_params_from(self: Any, arg_params: Any, aux_params: Any = None, allow_extra_params: Any = False) -> Any:
        if (ahead := _ahead.pop(self, None)) is not None:
            given = arg_params if isinstance(arg_params, dict) else {}
            equal = {name for name in ahead if _is_equal(given.get(name), self.arg_dict[name])}
            for name in ahead - given.keys():  # a module that was given no such array has zeros
                self.arg_dict[name][:] = 0
            if equal:
                arg_params = {name: array for name, array in given.items() if name not in equal}
        return original(self, arg_params, aux_params, allow_extra_params)

    return copy_params_from


def _reshape(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reshape(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        if self in _ahead:  # the arrays of both are the same
            _ahead[made] = _ahead[self]
        return made

    return reshape


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two arrays are known to have equal types and bytes, those of one file."""
    place, other_place = _place(one), _place(other)
    if place is None or other_place is None or one.shape != other.shape:
        return False
    files = [(each[0].path, each[0].identity) for each in (place, other_place)]
    return files[0] == files[1] and place[1:] == other_place[1:]
