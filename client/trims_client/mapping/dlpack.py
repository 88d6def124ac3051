"""DLPack: device memory lent to another library through a capsule. Standard library only.

Memory stays open until the borrowing library calls the deleter, which it does when its last tensor over the memory is
gone: in any thread, at any moment, while an exception is being raised, or while the interpreter ends. Python code must
not run there: the exception would be lost, and after the interpreter's end it would crash. Therefore:

1. The deleter is a C function that only leaves a mark: `time` of the C library, which writes the time over the first
   eight bytes of the structure that it is given.
2. `collect` finds the marks and releases the memory. It runs with each loan, with each close and request of a session,
   and every second in a separate thread, which lives for as long as there are loans.

Not covered: reading capsules of other libraries.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

from trims_client import background

#: Values of DLDeviceType.
CPU = 1
CUDA = 2
#: dtype -> (DLDataTypeCode, bits).
_CODES = {
    "I8": (0, 8), "I16": (0, 16), "I32": (0, 32), "I64": (0, 64),
    "U8": (1, 8), "U16": (1, 16), "U32": (1, 32), "U64": (1, 64),
    "F16": (2, 16), "F32": (2, 32), "F64": (2, 64), "BF16": (4, 16), "C64": (5, 64), "BOOL": (6, 8),
    "F8_E4M3": (10, 8), "F8_E4M3FNUZ": (11, 8), "F8_E5M2": (12, 8), "F8_E5M2FNUZ": (13, 8), "F8_E8M0": (14, 8),
}  # fmt: skip
_VERSION = (1, 0)
_READ_ONLY = 1


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor: for borrowers that ask for no version, or for one before DLPack 1.0."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


#: Address of the deleter. It is in the C library, so it stays valid after the interpreter's end.
_NOTE_DOWN = ctypes.cast(ctypes.CDLL(None).time, ctypes.c_void_p).value
_allocate = ctypes.pythonapi.PyMem_RawMalloc
_allocate.restype, _allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_free = ctypes.pythonapi.PyMem_RawFree
_free.restype, _free.argtypes = None, [ctypes.c_void_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p]


class _Loan:
    """A loan that was not collected yet.

    Attributes:
        owner: Keeps the memory open.
        capsule: The capsule, kept here to count its references. It has no destructor, which would be Python code, too.
        name: Address of the name that the capsule has until a borrower takes it.
        first: The structure's first eight bytes, which the deleter overwrites.
        before: The value of `first` before that.
    """

    __slots__ = ("before", "capsule", "first", "name", "owner")

    def __init__(self, owner: object, capsule: Any, name: int, first: ctypes.c_uint64, before: int) -> None:
        self.owner = owner
        self.capsule = capsule
        self.name = name
        self.first = first
        self.before = before

    def given_back(self) -> bool:
        """Return whether the borrower is done, or no borrower took the capsule and no reference to it is left."""
        if self.first.value != self.before:
            return True
        # Two references: the attribute and the argument.
        return sys.getrefcount(self.capsule) <= 2 and bool(_is_capsule(self.capsule, self.name))


#: Loans by the structure's address. The structure lies in raw memory, which stays valid when this module is gone.
_loans: dict[int, _Loan] = {}
_EVERY_S = 1.0


class _Collecting:
    """The lock of `_loans`, and the thread that collects. Neither survives a fork, so a child makes new ones."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.none_left = threading.Event()
        self.thread: threading.Thread | None = None
        self.gate = background.gate()

    def start(self) -> None:
        """Start the thread if there is none. Call it under the lock."""
        if self.thread is None:
            self.none_left.clear()
            self.thread = threading.Thread(target=self._run, name="trims-collect", daemon=True)
            try:
                self.thread.start()
            except RuntimeError:  # the interpreter is ending, and all loans with it
                return

    def _run(self) -> None:
        while True:
            self.none_left.wait(_EVERY_S)
            with self.gate:
                collect()
                with self.lock:
                    if not _loans:
                        self.thread = None
                        return


_collecting = _Collecting()
os.register_at_fork(after_in_child=_collecting.__init__)  # type: ignore[misc]


def lend(
    owner: object,
    address: int,
    dtype: str,
    shape: tuple[int, ...],
    device: tuple[int, int],
    *,
    versioned: bool,
) -> object:
    """Return a capsule for dense memory that must not be written.

    Args:
        owner: Kept alive until the borrower is done.
        address: Address of the first byte; 0 for an empty tensor.
        device: DLDeviceType and number.
        versioned: Whether to make a `dltensor_versioned` of DLPack 1.0, flagged read-only; else a `dltensor`, which has
            no such flag.
    """
    collect()
    kind = _ManagedVersioned if versioned else _Managed
    block, name_at = _allocated(ctypes.sizeof(kind), shape, b"dltensor_versioned\0" if versioned else b"dltensor\0")
    made = kind.from_address(block)
    tensor, shape_at = made.tensor, block + ctypes.sizeof(kind)
    tensor.data, tensor.device, tensor.ndim = address, _DLDevice(*device), len(shape)
    tensor.dtype = _DLDataType(*_CODES[dtype], 1)
    tensor.shape, tensor.strides = shape_at, shape_at + 8 * len(shape)
    made.deleter = _NOTE_DOWN
    if isinstance(made, _ManagedVersioned):
        (made.major, made.minor), made.flags = _VERSION, _READ_ONLY
    first = ctypes.c_uint64.from_address(block)
    capsule = _new_capsule(block, name_at, None)
    with _collecting.lock:
        _loans[block] = _Loan(owner, capsule, name_at, first, first.value)
        _collecting.start()
    return capsule


def _allocated(head_bytes: int, shape: tuple[int, ...], name: bytes) -> tuple[int, int]:
    """Allocate a zeroed structure, followed by shape, strides and the capsule's name.

    Returns the addresses of the structure and of the name.
    """
    rank = len(shape)
    block = int(_allocate(head_bytes + 16 * rank + len(name)))
    name_at = block + head_bytes + 16 * rank
    ctypes.memset(block, 0, head_bytes)
    (ctypes.c_int64 * (2 * rank)).from_address(block + head_bytes)[:] = [*shape, *_strides(shape)]
    ctypes.memmove(name_at, name, len(name))
    return block, name_at


def collect() -> int:
    """Release the loans that were given back. Return the number that remains. May be called from any thread."""
    owners = []
    with _collecting.lock:
        for block, loan in list(_loans.items()):
            # Checked again: an owner's finaliser may have called `collect` in between.
            if block in _loans and loan.given_back():
                del _loans[block]
                owners.append(loan.owner)
                loan.capsule = None
                _free(block)
        if not _loans:
            _collecting.none_left.set()
    return len(_loans)  # the owners end here, outside the lock


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Return strides of a dense row-major tensor, in elements."""
    found = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        found[axis - 1] = found[axis] * shape[axis]
    return found
