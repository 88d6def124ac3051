"""MXNet's arrays over memory of others, without a copy. `mx.nd.from_numpy` does without int8, and slower."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.ndarray.ndarray import DLContext, DLDataType, DLManagedTensor, DLTensor, dl_managed_tensor_deleter

if TYPE_CHECKING:
    from collections.abc import Sequence

#: dtypes that MXNet's operators support -> DLPack's code and bits.
TYPES = {
    "F32": (2, 32), "F64": (2, 64), "F16": (2, 16), "U8": (1, 8), "I8": (0, 8), "I32": (0, 32), "I64": (0, 64),
    "BOOL": (1, 1),
}  # fmt: skip
_HOST = DLContext(1, 0)


def memory_over(data: memoryview, dtype: str) -> Any:
    """Return writable memory for `array_over`: the same, or a copy if it is not aligned to its elements."""
    memory = (ctypes.c_char * data.nbytes).from_buffer(data)
    if ctypes.addressof(memory) % max(1, TYPES[dtype][1] // 8):
        return type(memory).from_buffer_copy(data)
    return memory


def array_over(memory: Any, dtype: str, shape: Sequence[int]) -> Any:
    """Return an NDArray over memory of `memory_over`, which it keeps."""
    keeper = ctypes.py_object(memory)
    lengths = (ctypes.c_int64 * len(shape))(*shape)
    tensor = DLTensor(ctypes.addressof(memory), _HOST, len(shape), DLDataType(*TYPES[dtype], 1), lengths)
    managed = DLManagedTensor(tensor, ctypes.c_void_p.from_buffer(keeper), dl_managed_tensor_deleter)
    handle = NDArrayHandle()
    ctypes.pythonapi.Py_IncRef(keeper)  # the deleter gives it back
    check_call(_LIB.MXNDArrayFromDLPackEx(ctypes.byref(managed), True, ctypes.byref(handle)))
    return mx.nd.NDArray(handle)
