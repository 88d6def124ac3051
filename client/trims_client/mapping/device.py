"""Device memory of an attached model: opened once in a process, read-only, closed when the last tensor is gone.

The driver's library is loaded when a model on a device is opened, and no package is needed for it. The process's
primary context is used, which is also the one of PyTorch, cupy and ONNX Runtime. The thread that opens, reads
or closes belongs to the user's program, so its current context (or none) is the same afterwards as before.

Memory that cannot be closed now, for example because another thread captures a CUDA graph, stays open with its lease.
`collect` tries again to close it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from trims.core.errors import DeviceLostError, NotSupportedError
from trims.memory.cuda.connect import connect_borrower
from trims.memory.cuda.drivers import borrowed_memory
from trims_client.mapping import dlpack

if TYPE_CHECKING:
    from trims.core.layout import TensorSpec
    from trims.memory.cuda.api import Borrowing, Device
    from trims.memory.cuda.drivers import BorrowedMemory, Export, Opened

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_lock = threading.Lock()
_connected: dict[tuple[str, str], tuple[Borrowing, Device]] = {}
#: Memory that could not be closed. Finalisers append to it, and a finaliser must not take a lock.
_late: deque[_Open] = deque()
#: dtype -> typestr of `__cuda_array_interface__`; a dtype that is missing here is shown as integers of its size.
_TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class DeviceRegion:
    """A model's memory on its device, open in this process.

    Args:
        export: The device memory, from the daemon; closed here.
        head: A view of the image's head, which keeps the lease for as long as this region lives.

    Attributes:
        address: Address of the image's first byte in the device's primary context.
        dlpack_device: DLPack's kind and number of the device in this process.
        read_only: Whether the device stops a kernel that writes.
    """

    def __init__(self, export: Export, head: memoryview) -> None:
        try:
            _close_late()
            cuda, device = _connect(export.cuda, export.device)
            memory = borrowed_memory(export.driver, cuda, device)
            with cuda.bound():
                self.dlpack_device = cuda.dlpack_device()
                opened = memory.open(export)
        finally:
            export.close()
        self.address = opened.address
        self.device = export.device
        self.read_only = memory.read_only
        self._cuda = cuda
        left = _Open(export.device, cuda, memory, opened, head)
        weakref.finalize(self, left.close).atexit = False

    def read(self, address: int, nbytes: int) -> bytearray:
        """Copy `nbytes` bytes from a device address to the host."""
        found = bytearray(nbytes)
        if nbytes:
            with self._cuda.bound():
                self._copy_out(found, address)
        return found

    def _copy_out(self, found: bytearray, address: int) -> None:
        stream = self._cuda.stream()
        try:
            place = (ctypes.c_ubyte * len(found)).from_buffer(found)
            self._cuda.copy_out(ctypes.addressof(place), address, len(found), stream)
            self._cuda.synchronize(stream)
        finally:
            self._cuda.end_stream(stream)


class DeviceTensor:
    """One tensor on a device, for users of DLPack or `__cuda_array_interface__`: PyTorch, cupy, ONNX Runtime, JAX.

    The tensor, and every object that borrows from it, keeps the memory open.

    The memory must not be written. The flag of DLPack 1.0 says so, but PyTorch and cupy do not look at it, and neither
    older capsules nor `__cuda_array_interface__` have such a flag. With `vmm` the device stops a kernel that writes,
    which ends the writer's context; with `ipc` nothing stops it.

    `__cuda_array_interface__` has no bfloat16 and no float8. They are shown as unsigned integers of their size, which
    the borrower must view as `dtype`. DLPack has both.

    Attributes:
        dtype: Data type, named as in the layout: `F32`, `BF16`, ...
        address: Device address of the first byte.
    """

    def __init__(self, region: DeviceRegion, spec: TensorSpec, data_start: int) -> None:
        self._region = region
        self.dtype = spec.dtype
        self.shape = spec.shape
        self.nbytes = spec.nbytes
        self.address = region.address + data_start + spec.offset

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Return version 3.

        Not flagged read-only, because PyTorch refuses that flag; writing is forbidden all the same.
        """
        elements = 1
        for extent in self.shape:
            elements *= extent
        size = self.nbytes // elements if elements else 1
        return {
            "shape": self.shape,
            "typestr": _TYPES.get(self.dtype, f"{'|' if size == 1 else '<'}u{size}"),
            "data": (self.address if self.nbytes else 0, False),
            "strides": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLDeviceType and the device's number in this process."""
        return self._region.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule over the shared bytes: of DLPack 1.0, read-only, if the borrower knows that; else older.

        `stream` is ignored: all copies were complete before the memory could be opened, and it is not written since.
        Raises BufferError, as the protocol requires, if a copy or another device is asked for.
        """
        if copy:
            raise BufferError(f"{self!r} is lent, not copied; copy it with the library that borrows it")
        if dl_device is not None and tuple(dl_device) != self._region.dlpack_device:
            raise BufferError(f"{self!r} is device {self._region.dlpack_device} of DLPack here, not {dl_device}")
        return self.lend(self.dtype, versioned=max_version is not None and max_version[0] >= 1)

    def lend(self, dtype: str, *, versioned: bool) -> object:
        """Return the capsule. `dtype` may be another one of the same size, for a borrower that lacks this tensor's."""
        device, address = self._region.dlpack_device, self.address if self.nbytes else 0
        return dlpack.lend(self._region, address, dtype, self.shape, device, versioned=versioned)

    def to_host(self) -> bytearray:
        """Return a private copy of the tensor's bytes in this process's memory."""
        return self._region.read(self.address, self.nbytes)

    def __repr__(self) -> str:
        return f"<DeviceTensor {self.dtype}{list(self.shape)} on {self._region.device}>"


def _connect(kind: str, uuid: str) -> tuple[Borrowing, Device]:
    """Return the driver and the device, with the primary context retained once and kept, as frameworks also do."""
    with _lock:
        if (kind, uuid) not in _connected:
            try:
                cuda = connect_borrower(kind)
                _connected[kind, uuid] = (cuda, cuda.retain(uuid))
            except NotSupportedError as error:
                raise NotSupportedError(
                    f"models on the device {uuid} cannot be opened here: {error}{_runtime_variable()}"
                ) from error
    return _connected[kind, uuid]


def _runtime_variable() -> str:
    """Return what hides devices from this process; empty if nothing does."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if chosen is None else f"; CUDA_VISIBLE_DEVICES is {chosen!r} here, which hides others"


def leave_devices() -> None:
    """Give all contexts back. No device memory may be open in this process any more."""
    _close_late(whenever_due=False)
    with _lock:
        for cuda, _ in _connected.values():
            cuda.leave()
        _connected.clear()


def check_devices() -> None:
    """Wait for each device that this process uses. Raises DeviceLostError if one, or the context of it, is lost."""
    for cuda, _ in list(_connected.values()):
        with cuda.bound():
            cuda.wait()


def collect() -> int:
    """Close memory that other libraries have given back, or that could not be closed earlier. Never raises.

    Returns the number of loans that remain. May be called from any thread.
    """
    loans = dlpack.collect()
    _close_late()
    return loans


class _Open:
    """The memory that a region has open, for its finaliser. It must not refer to the region, which would never end.

    Attributes:
        head: Keeps the lease for as long as this is open.
        process: Id of the process that opened it.
        told: Whether the warning that it could not be closed was logged.
        again_at_s: Time of the next try, on the monotonic clock.
        pause_s: Seconds between the last two tries.
    """

    __slots__ = ("again_at_s", "cuda", "device", "head", "memory", "opened", "pause_s", "process", "was_logged")

    def __init__(self, device: str, cuda: Borrowing, memory: BorrowedMemory, opened: Opened, head: memoryview) -> None:
        self.device = device
        self.cuda = cuda
        self.memory = memory
        self.opened = opened
        self.head = head
        self.process = os.getpid()
        self.was_logged = False
        self.again_at_s = self.pause_s = 0.0

    def close(self) -> None:
        """Close. Called from a finaliser, in any thread; memory that cannot be closed now is kept for a later try."""
        if not self._closed():
            _late.append(self)

    def _closed(self) -> bool:
        """Try to close. Return whether nothing is left to do."""
        if self.process != os.getpid():  # after a fork: the mapping belongs to the parent, which closes it
            return True
        closed = False
        try:
            with self.cuda.bound():
                self.cuda.wait()  # kernels that use the memory may still run
                self.memory.close(self.opened)
                closed = True
        except DeviceLostError:
            return True  # the context is lost, and the mapping with it
        except Exception as error:  # noqa: BLE001 - logged, and tried again; a finaliser has no caller to raise to
            self._log_once(error)
            # Each try waits for the device, which ruins a graph that another thread captures: so the pauses grow.
            self.again_at_s = time.monotonic() + self.pause_s
            self.pause_s = min(max(_PAUSE_S, 2 * self.pause_s), _LONGEST_PAUSE_S)
        return closed

    def _log_once(self, error: Exception) -> None:
        """Log a warning, once: closing is tried many times."""
        if self.was_logged:
            return
        self.was_logged = True
        import logging

        # As text: a log record that keeps the exception would keep the objects in its traceback alive.
        text = "memory on the device %s stays open with its lease, until it can be closed: %s"
        logging.getLogger(__name__).warning(text, self.device, str(error))


def _close_late(*, whenever_due: bool = True) -> None:
    """Try again to close memory that could not be closed. Needs no lock: another thread has what the queue lacks."""
    for _ in range(len(_late)):
        try:
            left = _late.popleft()
        except IndexError:
            return
        if whenever_due and left.again_at_s > time.monotonic():
            _late.append(left)
        else:
            left.close()
