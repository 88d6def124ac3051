"""Tensors between endpoint and predictor: a name, a data type, a shape and bytes; and the numpy arrays they stand for.

The bytes are those of the Open Inference Protocol's binary tensors: little-endian, row-major, and for BYTES each
element after its length as 4 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, PredictorError
from trims.manifests.serving import ITEM_BYTES, MOST_DIMENSIONS, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from trims.wire.frames import Message

_LENGTH = struct.Struct("<I")
#: Data types and what numpy calls them; BF16 comes from ml_dtypes.
_NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_OF_NUMPY = {
    ("b", 1): "BOOL",
    **{(name.strip("<")[0], int(name[-1])): key for key, name in _NUMPY.items() if key != "BOOL"},
}
#: Bytes that an event loop copies by itself, in a millisecond at most: waking a thread up for it, and being woken by
#: that, takes nearly as long. More is copied in a thread, so that the loop serves others meanwhile.
COPIED_AT_ONCE_BYTES = 4 << 20
#: Elements that one tensor may have; more would not fit into memory anyhow.
_MOST_ELEMENTS = 1 << 40


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a request or an answer; `data` is its bytes, as the module says.

    `checked` says that another process has held them against type and shape already.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    checked: bool = field(default=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return memoryview(self.data).nbytes

    def check(self) -> None:
        """Raise CallerError unless the data has as many bytes as shape and type say."""
        if self.checked:
            return
        expected = nbytes_of(self.name, self.dtype, self.shape)
        if expected is None:
            for _ in split_bytes(self.name, self.data, prod(self.shape)):
                pass
        elif expected != self.nbytes:
            raise CallerError(
                f"the tensor {self.name!r} brings {self.nbytes} bytes; {self.dtype} of shape {list(self.shape)} "
                f"has {expected}"
            )
        elif self.dtype == "BOOL":
            self._check_truths()

    def _check_truths(self) -> None:
        import numpy as np

        if np.frombuffer(self.data, np.uint8).max(initial=0) > 1:
            raise CallerError(f"the tensor {self.name!r} is BOOL and has bytes other than 0 and 1")


def nbytes_of(name: str, dtype: str, shape: Sequence[int]) -> int | None:
    """Bytes that a tensor has; None for BYTES. Raises CallerError for a type or shape that cannot be."""
    if dtype not in ITEM_BYTES:
        raise CallerError(f"the tensor {name!r} has the data type {dtype!r}; {', '.join(ITEM_BYTES)} are known")
    if len(shape) > MOST_DIMENSIONS:
        raise CallerError(f"the tensor {name!r} has {len(shape)} dimensions; {MOST_DIMENSIONS} are the most")
    elements = extent = 1
    for length in shape:
        if length < 0:
            raise CallerError(f"the tensor {name!r} has the shape {list(shape)}; lengths are 0 and more")
        elements *= length
        extent *= length or 1  # numpy has no such array, also if another length is 0
        if extent > _MOST_ELEMENTS:
            raise CallerError(f"the tensor {name!r} has the shape {list(shape)}, more elements than memory can hold")
    item = ITEM_BYTES[dtype]
    return None if item is None else elements * item


def split_bytes(name: str, data: bytes | memoryview, count: int) -> Iterable[bytes]:
    """The elements of a BYTES tensor. Raises CallerError if they are not `count`, or end in the middle."""
    view = memoryview(data).cast("B")
    at = found = 0
    while at < len(view):
        if at + _LENGTH.size > len(view):
            raise CallerError(f"the tensor {name!r} ends in the middle of a length")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if at + length > len(view):
            raise CallerError(f"the tensor {name!r} has an element of {length} bytes; {len(view) - at} are left")
        yield bytes(view[at : at + length])
        at += length
        found += 1
    if found != count:
        raise CallerError(f"the tensor {name!r} has {found} elements; its shape says {count}")


def join_bytes(elements: Iterable[bytes]) -> bytes:
    """The data of a BYTES tensor."""
    joined = bytearray()
    for each in elements:
        joined += _LENGTH.pack(len(each))
        joined += each
    return bytes(joined)


def to_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The numpy array over the tensor's bytes; of BYTES an array of `bytes` objects."""
    import numpy as np

    if tensor.dtype == "BYTES":
        made = np.empty(prod(tensor.shape), dtype=object)
        made[:] = list(split_bytes(tensor.name, tensor.data, made.size))
        return made.reshape(tensor.shape)
    found: np.ndarray[Any, Any] = np.frombuffer(tensor.data, dtype=numpy_dtype(tensor.dtype))
    return found.reshape(tensor.shape)


def from_array(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over an array's bytes, which are copied only if they are not row-major and little-endian.

    Raises CallerError for a mask, for a data type that the protocol lacks, and for objects that are no text.
    """
    import numpy as np

    check_array(name, array)
    dtype = dtype_name(name, array.dtype)
    if dtype == "BYTES":
        elements = (_element(name, each) for each in array.ravel())
        return Tensor(name, dtype, array.shape, join_bytes(elements))
    plain = np.ascontiguousarray(array, dtype=numpy_dtype(dtype))
    return Tensor(name, dtype, array.shape, plain.reshape(-1).view(np.uint8).data)


def check_name(name: object) -> None:
    """Raise CallerError unless a tensor may have this name: text that can be encoded."""
    if not isinstance(name, str):
        raise CallerError(f"a tensor has a name of the type {type(name).__name__}; names are texts")
    if not name or not _is_unicode(name):
        raise CallerError(f"a tensor has the name {name!r}; names are texts that are not empty, without surrogates")


def check_array(name: str, array: np.ndarray[Any, Any]) -> None:
    """Raise CallerError unless the array can be a tensor: no mask, and a data type that the protocol has.

    Elements of objects are not looked at.
    """
    check_is_array(name, array)
    check_mask(name, array)
    dtype_name(name, array.dtype)


def check_is_array(name: str, value: object) -> None:
    """Raise CallerError for what has no data type of numpy's, such as a list."""
    import numpy as np

    if not isinstance(getattr(value, "dtype", None), np.dtype):
        raise CallerError(f"the tensor {name!r} is no array but of the type {type(value).__name__}; give a numpy array")


def check_mask(name: str, array: object) -> None:
    """Raise CallerError for a masked array: its mask would be lost on the way."""
    import numpy as np

    if isinstance(array, np.ma.MaskedArray):
        raise CallerError(f"the tensor {name!r} is a masked array, whose mask no tensor has; call its `.filled()`")


def check_texts(name: str, array: np.ndarray[Any, Any]) -> None:
    """Raise CallerError unless the elements of an array of objects are text or bytes."""
    for each in array.ravel():
        _element(name, each)


def _element(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise CallerError(f"the tensor {name!r} has an element of the type {type(value).__name__}; give bytes or text")
    if not _is_unicode(value):
        raise CallerError(f"the tensor {name!r} has the text {value!r:.80}, which has surrogates; give text or bytes")
    return value.encode()


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def numpy_dtype(dtype: str) -> Any:
    """Return numpy's type of a data type of the protocol."""
    if dtype == "BF16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return _NUMPY[dtype]


def dtype_name(name: str, dtype: np.dtype[Any]) -> str:
    """Return the protocol's name of a numpy type; text and objects are BYTES. Raises CallerError."""
    if dtype.kind in "OSU":
        return "BYTES"
    if dtype.name == "bfloat16":
        return "BF16"
    found = _OF_NUMPY.get((dtype.kind, dtype.itemsize))
    if found is None:
        raise CallerError(f"the tensor {name!r} has numpy's type {dtype}, which the inference protocol lacks")
    return found


def describe(types: Iterable[TensorType]) -> list[Message]:
    """Types of tensors for a message between processes."""
    return [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in types]


def types_of(described: Iterable[Message]) -> tuple[TensorType, ...]:
    """Return the tensor types that `describe` has turned into messages."""
    return tuple(TensorType(each["name"], each["dtype"], tuple(each["shape"])) for each in described)


def cast(name: str, dtype: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers of a request as its data type has them. Raises CallerError for those that it cannot hold."""
    import numpy as np

    wanted = np.dtype(numpy_dtype(dtype))
    if wanted.kind in "iu" and values.size:
        limits = np.iinfo(wanted)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise cannot_hold(name, dtype)
    with np.errstate(over="ignore"):
        made = values.astype(wanted)
    if wanted.kind not in "iub" and (np.isinf(made) & np.isfinite(values)).any():
        raise cannot_hold(name, dtype)
    return made


def cannot_hold(name: str, dtype: str) -> CallerError:
    """The error for numbers of a request that its data type cannot hold."""
    return CallerError(f"the input {name!r} has values that {dtype} cannot hold")


def check_against(given: Sequence[Tensor], expected: Sequence[TensorType], model: str) -> None:
    """Hold a request's tensors against what the model takes. Raises CallerError naming the first that does not fit."""
    for tensor in given:
        check_name(tensor.name)
        tensor.check()
    by_name = {tensor.name: tensor for tensor in given}
    if len(by_name) != len(given):
        names = [tensor.name for tensor in given]
        raise CallerError(
            f"the request brings the input {next(each for each in names if names.count(each) > 1)!r} twice"
        )
    if not expected:
        return
    known = ", ".join(f"{each.name} ({each.dtype} {list(each.shape)})" for each in expected)
    for wanted in expected:
        found = by_name.pop(wanted.name, None)
        if found is None:
            raise CallerError(f"{model!r} needs the input {wanted.name!r}; its inputs are {known}")
        if found.dtype != wanted.dtype or not wanted.admits(found.shape):
            raise CallerError(
                f"the input {wanted.name!r} of {model!r} is {wanted.dtype} of shape {list(wanted.shape)} (-1: any); "
                f"the request brings {found.dtype} of shape {list(found.shape)}"
            )
    for name in by_name:
        raise CallerError(f"{model!r} has no input {name!r}; its inputs are {known}")


def check_outputs(given: Sequence[Tensor], expected: Sequence[TensorType], model: str) -> None:
    """Hold an answer's tensors against what the manifest states. Raises PredictorError for the first that differs."""
    if not expected:
        return
    by_name = {tensor.name: tensor for tensor in given}
    for wanted in expected:
        found = by_name.get(wanted.name)
        if found is None:
            raise PredictorError(
                f"the predictor of {model!r} gave no output {wanted.name!r}, which its manifest states; it gave "
                f"{', '.join(by_name) or 'none'}"
            )
        if found.dtype != wanted.dtype or not wanted.admits(found.shape):
            raise PredictorError(
                f"the output {wanted.name!r} of {model!r} is {found.dtype} of shape {list(found.shape)}; its manifest "
                f"states {wanted.dtype} of shape {list(wanted.shape)}"
            )
