"""The pickle inside a PyTorch checkpoint, read without PyTorch and without running anything it names.

`torch.save` writes protocol 2 and uses some thirty of pickle's opcodes; they are all that is known here. Each value
is built from plain containers, numbers and strings, and each tensor becomes a `StoredTensor`. A checkpoint that says
more (other functions, other classes, other opcodes) is not judged here: torch does that, in a child. The opcodes are
described in the standard library's `pickletools`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import NotInPlaceError
from trims.core.layout import DTYPE_BYTES
from trims.formats.torch.state import StateDict
from trims.formats.torch.tensors import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Our dtypes, by classes of storage whose elements have a type.
_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
}  # fmt: skip
_STOP, _REMEMBER, _REMEMBER_FAR, _RECALL, _TEXT, _BYTE, _INTEGER, _MARK = b".qrhXKJ("
#: Opcodes that push a constant.
_CONSTANTS = {ord(")"): (), ord("N"): None, 0x88: True, 0x89: False}
#: Class of storage of newer dtypes, where each tensor has a dtype of its own.
_UNTYPED = ("torch.storage", "UntypedStorage")
#: Types that a key of a dict may have. The hash of a deep tuple, for one, would use up the C stack.
_KEYS = (str, int, float, bool, type(None))
_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu")
_INT, _UINT, _USHORT, _DOUBLE = (struct.Struct(code) for code in ("<i", "<I", "<H", ">d"))


class StoredTensor(NamedTuple):
    """A tensor as the checkpoint describes it.

    Attributes:
        storage: Name of the member under `data/` that holds its bytes.
        dtype: Ours.
        begin: Position of its first byte in the storage.
        shape: Extents.
        nbytes: How many it has, if it is dense.
        dense: Whether its elements lie row-major without holes.
    """

    storage: str
    dtype: str
    begin: int
    shape: tuple[int, ...]
    nbytes: int
    dense: bool


def read_pickle(data: bytes) -> Any:
    """Return the pickled value. Raises NotInPlaceError for one that only torch can read, or that is broken."""
    try:
        return _Machine(data).run()
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise NotInPlaceError(f"its pickle is not as torch.save writes it: {type(error).__name__}: {error}") from error


class _Named(NamedTuple):
    """A function, class or dtype that the pickle names.

    Attributes:
        function: What a call of it does here; None if it may not be called.
    """

    module: str
    name: str
    function: Callable[..., Any] | None


class _Storage(NamedTuple):
    """Bytes of a member. Without a dtype, each tensor in it has a dtype of its own."""

    key: str
    dtype: str | None
    nbytes: int


class _Machine:
    """Pickle's stack machine. Its public methods are the actions of opcodes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        #: Storages by name; torch gives all tensors in one the type that it has when it is named first.
        self._storages: dict[str, _Storage] = {}

    def run(self) -> Any:
        """Run the pickle. Return the value that is left at the end."""
        data, memo, at, stack = self._data, self._memo, self._at, self._stack
        while (code := data[at]) != _STOP:
            # Three of four opcodes of a checkpoint are these, done here in local variables; the others are looked up.
            if code == _REMEMBER_FAR:
                memo[_UINT.unpack_from(data, at + 1)[0]] = stack[-1]
                at += 5
            elif code == _RECALL:
                stack.append(memo[data[at + 1]])
                at += 2
            elif code == _BYTE:
                stack.append(data[at + 1])
                at += 2
            elif code == _INTEGER:
                stack.append(_INT.unpack_from(data, at + 1)[0])
                at += 5
            elif code == _TEXT:
                begin = at + 5
                at = begin + _UINT.unpack_from(data, at + 1)[0]
                stack.append(_whole(data, begin, at).decode())
            elif code == _MARK:
                self._below.append(stack)
                stack = []
                at += 1
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
                at += 1
            elif code == _REMEMBER:
                memo[data[at + 1]] = stack[-1]
                at += 2
            else:
                self._at, self._stack = at + 1, stack
                _action(code, at)(self)
                at, stack = self._at, self._stack
        return stack.pop()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def push_short(self) -> None:
        self._stack.append(self._number(_USHORT))

    def push_long(self) -> None:
        self._stack.append(int.from_bytes(self._bytes(self._byte()), "little", signed=True))

    def push_float(self) -> None:
        self._stack.append(self._number(_DOUBLE))

    def push_named(self) -> None:
        module, name = self._line(), self._line()
        typed = module == "torch" and (name in DTYPES or name in _STORAGES)
        function = _FUNCTIONS.get(f"{module} {name}")
        if not typed and function is None and (module, name) != _UNTYPED:
            raise ValueError(f"it names {module}.{name}")
        self._stack.append(_Named(module, name, function))

    def protocol(self) -> None:
        if (number := self._byte()) != 2:
            raise ValueError(f"protocol {number}")

    def tuple_since_mark(self) -> None:
        since, self._stack = self._stack, self._below.pop()
        self._stack.append(tuple(since))

    def tuple_of_one(self) -> None:
        self._stack[-1] = (self._stack[-1],)

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("its stack is empty")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def recall_far(self) -> None:
        self._stack.append(self._memo[self._number(_UINT)])

    def persistent(self) -> None:
        found = _storage(*self._stack[-1])
        if self._storages.setdefault(found.key, found).dtype != found.dtype:
            raise ValueError(f"storage {found.key!r} has two dtypes")
        self._stack[-1] = found

    def call(self) -> None:
        arguments = self._stack.pop()
        named = self._stack[-1]
        if not isinstance(named, _Named) or type(arguments) is not tuple:
            raise TypeError(f"it calls a {type(named).__name__}")
        function = named.function
        if function is None:
            raise KeyError(f"{named.module}.{named.name}")
        self._stack[-1] = function(*arguments)

    def build(self) -> None:
        """Take the versions of modules out of the state of a dict, where torch keeps them beside a state dict."""
        state, target = self._stack.pop(), self._top(dict)
        if isinstance(target, StateDict) and isinstance(state, dict):
            target._metadata = state.get("_metadata")

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set((key,), (value,))

    def set_items(self) -> None:
        items = self._since_mark()
        self._set(items[::2], items[1::2])

    def append(self) -> None:
        value = self._stack.pop()
        self._top(list).append(value)

    def extend(self) -> None:
        items = self._since_mark()
        self._top(list).extend(items)

    def _set(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        if not all(isinstance(key, _KEYS) for key in keys):
            raise TypeError("a key is neither a string nor a number")
        self._top(dict).update(zip(keys, values, strict=True))

    def _top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise TypeError(f"it fills a {type(self._stack[-1]).__name__} as a {kind.__name__}")
        return self._stack[-1]

    def _since_mark(self) -> list[Any]:
        found, self._stack = self._stack, self._below.pop()
        return found

    def _number(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return value

    def _bytes(self, length: int) -> bytes:
        begin, self._at = self._at, self._at + length
        return _whole(self._data, begin, self._at)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _line(self) -> str:
        begin, end = self._at, self._data.index(b"\n", self._at)
        self._at = end + 1
        return self._data[begin:end].decode()


def _whole(data: bytes, begin: int, end: int) -> bytes:
    if end > len(data):
        raise IndexError("it ends too early")
    return data[begin:end]


def _storage(kind: Any, named: Any, key: Any, device: Any, count: Any) -> _Storage:
    if kind != "storage" or not isinstance(named, _Named) or type(key) is not str or type(count) is not int:
        raise TypeError("a storage is described in another way")
    if type(device) is not str or device.partition(":")[0] not in _DEVICES:
        raise ValueError("a storage is on no device that has bytes")
    dtype = None if named.name == _UNTYPED[1] and named.module == _UNTYPED[0] else _STORAGES[named.name]
    return _Storage(key, dtype, count * (DTYPE_BYTES[dtype] if dtype else 1))


def _tensor_v2(*given: Any) -> StoredTensor:
    """Rebuild as `torch._utils._rebuild_tensor_v2`: storage, offset, shape, stride, requires_grad, hooks, metadata."""
    storage, *_ = given
    if not isinstance(storage, _Storage) or storage.dtype is None:
        raise TypeError("a tensor has no storage with a dtype")
    return _tensor(storage, storage.dtype, given[1:6], given[6:])


def _tensor_v3(*given: Any) -> StoredTensor:
    """Rebuild as `torch._utils._rebuild_tensor_v3`, which has the tensor's own dtype before the metadata."""
    storage, dtype = given[0], given[6]
    if not isinstance(storage, _Storage) or not isinstance(dtype, _Named) or dtype.module != "torch":
        raise TypeError("a tensor has no storage, or no dtype")
    return _tensor(storage, DTYPES[dtype.name], given[1:6], given[7:])


def _tensor(storage: _Storage, dtype: str, given: Sequence[Any], metadata: Sequence[Any]) -> StoredTensor:
    if metadata and metadata not in ((None,), ({},)):
        # Its elements are not what its bytes say: they are to be conjugated or negated, or something newer.
        marks = list(metadata[0])[:3] if isinstance(metadata[0], dict) else [type(metadata[0]).__name__]
        raise ValueError(f"a tensor is marked {marks!r:.100}")
    offset, shape, stride, _, _ = given
    if len(shape) != len(stride):
        raise TypeError("a tensor has not as many strides as extents")
    for number in (offset, *shape, *stride):
        if type(number) is not int or number < 0:
            raise ValueError("a tensor has an impossible shape")
    begin, dense, nbytes = offset * DTYPE_BYTES[dtype], True, DTYPE_BYTES[dtype]
    for extent, step in zip(reversed(shape), reversed(stride), strict=True):
        dense = dense and (extent == 1 or step * DTYPE_BYTES[dtype] == nbytes)
        nbytes *= extent
    if dense and begin + nbytes > storage.nbytes:
        raise ValueError("a tensor does not fit its storage")
    return StoredTensor(storage.key, dtype, begin, tuple(shape), nbytes, dense or not nbytes)


def _parameter(tensor: Any, *rest: Any) -> StoredTensor:
    del rest
    if not isinstance(tensor, StoredTensor):
        raise TypeError("a parameter has no tensor")
    return tensor


def _ordered_dict() -> StateDict:
    return StateDict()


#: Functions by module and name. A pickle may name dtypes and classes of storage as well, but not call them.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "collections OrderedDict": _ordered_dict,
    "torch Size": tuple,
    "torch._utils _rebuild_parameter": _parameter,
    "torch._utils _rebuild_tensor_v2": _tensor_v2,
    "torch._utils _rebuild_tensor_v3": _tensor_v3,
}

_ACTIONS: Mapping[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    ord("}"): lambda machine: machine.push({}),
    ord("]"): lambda machine: machine.push([]),
    ord("M"): _Machine.push_short,
    0x8A: _Machine.push_long,
    ord("G"): _Machine.push_float,
    ord("c"): _Machine.push_named,
    ord("t"): _Machine.tuple_since_mark,
    0x85: _Machine.tuple_of_one,
    0x86: lambda machine: machine.tuple_of(2),
    0x87: lambda machine: machine.tuple_of(3),
    ord("j"): _Machine.recall_far,
    ord("Q"): _Machine.persistent,
    ord("R"): _Machine.call,
    ord("b"): _Machine.build,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("a"): _Machine.append,
    ord("e"): _Machine.extend,
}


def _action(code: int, at: int) -> Callable[[_Machine], None]:
    found = _ACTIONS.get(code)
    if found is None:
        raise ValueError(f"opcode {chr(code)!r} at {at}")
    return found
