"""Device memory of an attached model: opened once in a process, read-only, closed when the last tensor is gone.

Nothing of CUDA is imported before a model on a device is opened; then the package cuda-bindings is (extra `gpu`). The
process's primary context is used, the one that PyTorch, cupy and ONNX Runtime use.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from trims.core.errors import NotSupportedError, TrimsError
from trims.memory.cuda.api import connect
from trims.memory.cuda.drivers import device_memory

if TYPE_CHECKING:
    from trims.core.layout import TensorSpec
    from trims.memory.cuda.api import Cuda, Device
    from trims.memory.cuda.drivers import DeviceMemory, Export, Opened

_lock = threading.Lock()
_connected: dict[tuple[str, str], tuple[Cuda, Device]] = {}
#: What `__cuda_array_interface__` calls them; what is missing travels as integers of its size.
_TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class DeviceRegion:
    """A model's memory on its device, open in this process.

    Args:
        export: From the daemon; closed here.
        head: A view of the image's head, which keeps the lease for as long as this region lives.

    Attributes:
        address: Of the image's first byte, in the address space of the device's primary context.
        device: UUID.
        read_only: Whether the device stops who writes.
    """

    def __init__(self, export: Export, head: memoryview) -> None:
        try:
            cuda, device = _use(export.cuda, export.device)
            memory = device_memory(export.driver, cuda, device)
            opened = memory.open(export)
        finally:
            export.close()
        self.address = opened.address
        self.device = export.device
        self.read_only = memory.read_only
        self._head = head
        weakref.finalize(self, _close, cuda, memory, opened).atexit = False


class DeviceTensor:
    """One tensor on a device, for whoever takes `__cuda_array_interface__`: cupy, PyTorch, numba, JAX.

    It keeps the memory open. The interface has no bfloat16 and no float8: those show as unsigned integers of their
    size, to be viewed as what `dtype` says.

    Attributes:
        dtype: As in the layout: `F32`, `BF16`, ...
        shape: Extents.
        address: Of its first byte.
        nbytes: Its size.
    """

    def __init__(self, region: DeviceRegion, spec: TensorSpec, data_start: int) -> None:
        self._region = region
        self.dtype = spec.dtype
        self.shape = spec.shape
        self.nbytes = spec.nbytes
        self.address = region.address + data_start + spec.offset

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Version 3. Not flagged read-only, which PyTorch refuses; writing is stopped by the device or forbidden."""
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

    def __repr__(self) -> str:
        return f"<DeviceTensor {self.dtype}{list(self.shape)} on {self._region.device}>"


def _use(kind: str, uuid: str) -> tuple[Cuda, Device]:
    """The device's primary context, current in this thread. Taken once and kept: frameworks keep it as well."""
    with _lock:
        if (kind, uuid) not in _connected:
            try:
                cuda = connect(kind)
                _connected[kind, uuid] = (cuda, cuda.use(uuid))
            except NotSupportedError as error:
                raise NotSupportedError(f"models on the device {uuid} cannot be opened here: {error}") from error
    cuda, device = _connected[kind, uuid]
    cuda.bind()
    return cuda, device


def leave_devices() -> None:
    """Give all contexts back. Nothing of a device may be open in this process any more."""
    with _lock:
        for cuda, _ in _connected.values():
            cuda.leave()
        _connected.clear()


def _close(cuda: Cuda, memory: DeviceMemory, opened: Opened) -> None:
    """From a finaliser, in any thread: kernels that were given the memory may still run."""
    try:
        cuda.bind()
        cuda.wait()
        memory.close(opened)
    except TrimsError:
        return  # the context is lost, and the mapping with it
