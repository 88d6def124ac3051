"""The CUDA driver for a process that reads what others own: its C library through ctypes, and nothing to import.

`import cuda.bindings.driver` takes 25 ms and more, which each first open would pay. A borrower needs few functions, so
they are declared here as cuda.h of CUDA 13 has them. `bindings` is the way of owners, with the whole of the driver.

ctypes releases the interpreter lock during a call. Not covered: which way of sharing is used (`drivers`).
"""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from trims.core.errors import CudaError, NotSupportedError
from trims.memory.cuda.api import IPC_HANDLE_BYTES, Device, uuid_of
from trims.memory.cuda.statuses import error_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIBRARY = "libcuda.so.1"
_NAME_BYTES = 96
_LAZY_PEER_ACCESS = 1
_NON_BLOCKING = 1
_POSIX_DESCRIPTOR = 1
_ON_DEVICE = 1
_READ, _READ_WRITE = 1, 3
_DLPACK_CUDA = 2
#: Numbers of CUdevice_attribute.
VMM_SUPPORTED, DESCRIPTORS_SUPPORTED, READ_ONLY_REGISTER_SUPPORTED, IPC_SUPPORTED = 102, 103, 113, 125


class Uuid(ctypes.Structure):
    """CUuuid. Not of `c_char`, which ends at a zero."""

    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * IPC_HANDLE_BYTES),)


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


#: Function -> version of its symbol, and its arguments. All return CUresult. Addresses of devices and handles of their
#: memory are 64 bits; contexts and streams are pointers.
FUNCTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "cuInit": ("", (c_uint,)),
    "cuGetErrorName": ("", (c_int, POINTER(c_char_p))),
    "cuDeviceGetCount": ("", (POINTER(c_int),)),
    "cuDeviceGet": ("", (POINTER(c_int), c_int)),
    "cuDeviceGetUuid": ("_v2", (POINTER(Uuid), c_int)),  # the UUID of a part of a partitioned GPU, not of the whole
    "cuDeviceGetName": ("", (c_char_p, c_int, c_int)),
    "cuDeviceTotalMem": ("_v2", (POINTER(c_size_t), c_int)),
    "cuDeviceGetAttribute": ("", (POINTER(c_int), c_int, c_int)),
    "cuDevicePrimaryCtxRetain": ("", (POINTER(c_void_p), c_int)),
    "cuDevicePrimaryCtxRelease": ("_v2", (c_int,)),
    "cuDevicePrimaryCtxGetState": ("", (c_int, POINTER(c_uint), POINTER(c_int))),
    "cuCtxGetCurrent": ("", (POINTER(c_void_p),)),
    "cuCtxPushCurrent": ("_v2", (c_void_p,)),
    "cuCtxPopCurrent": ("_v2", (POINTER(c_void_p),)),
    "cuCtxSynchronize": ("", ()),
    "cuMemGetInfo": ("_v2", (POINTER(c_size_t), POINTER(c_size_t))),
    "cuIpcOpenMemHandle": ("_v2", (POINTER(c_uint64), IpcHandle, c_uint)),
    "cuIpcCloseMemHandle": ("", (c_uint64,)),
    "cuMemImportFromShareableHandle": ("", (POINTER(c_uint64), c_void_p, c_int)),
    "cuMemRelease": ("", (c_uint64,)),
    "cuMemAddressReserve": ("", (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64)),
    "cuMemAddressFree": ("", (c_uint64, c_size_t)),
    "cuMemMap": ("", (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64)),
    "cuMemUnmap": ("", (c_uint64, c_size_t)),
    "cuMemSetAccess": ("", (c_uint64, c_size_t, POINTER(AccessDescription), c_size_t)),
    "cuStreamCreate": ("", (POINTER(c_void_p), c_uint)),
    "cuStreamDestroy": ("_v2", (c_void_p,)),
    "cuStreamSynchronize": ("", (c_void_p,)),
    "cuMemcpyDtoHAsync": ("_v2", (c_void_p, c_uint64, c_size_t, c_void_p)),
}


class BorrowerDriver:
    """See `trims.memory.cuda.api.Borrowing`, whose methods these are.

    Raises:
        NotSupportedError: There is no driver, it does not start, or (from each call) it is too old for the call.
    """

    kind = "driver"

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NotSupportedError(
                f"there is no NVIDIA driver here: {error}; install it, or give the container the host's "
                "(`trims doctor` looks for the reason)"
            ) from error
        self._functions: dict[str, Any] = {}
        self._device = -1
        self._context: int | None = None
        self._call("cuInit", 0)

    def devices(self) -> Sequence[Device]:
        """Return all devices this process can see, without their peers, which no borrower needs."""
        return [self._describe(number) for number in self._numbers()]

    def retain(self, uuid: str) -> Device:
        """cuDevicePrimaryCtxRetain. Raises CapacityError if none can be had just now."""
        seen = []
        for number in self._numbers():
            seen.append(found := uuid_of(*self._uuid_and_name(number)))
            if found == uuid:
                described, context = self._describe(number), c_void_p()
                self._call("cuDevicePrimaryCtxRetain", byref(context), number)
                self._context, self._device = context.value, number
                return described
        raise NotSupportedError(
            f"the device {uuid} is not visible to this process, which sees {', '.join(seen) or 'none'}"
        )

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """cuCtxPushCurrent, and cuCtxPopCurrent after the block."""
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent", byref(c_void_p()))

    def dlpack_device(self) -> tuple[int, int]:
        """kDLCUDA. The driver and the frameworks over it number devices alike in one process."""
        return _DLPACK_CUDA, self._device

    def leave(self) -> None:
        """Release the primary context. Idempotent."""
        context, self._context = self._context, None
        if context is None:
            return
        # The release ends it if nothing else holds it, and leaves it current all the same: then this thread's next call
        # of the driver, from any library, would meet a context that is destroyed. Another one is not ours to move.
        current, flags, active = c_void_p(), c_uint(), c_int()
        self._call("cuCtxGetCurrent", byref(current))
        here = current.value == context
        if here:
            self._call("cuCtxPopCurrent", byref(current))
        self._call("cuDevicePrimaryCtxRelease", self._device)
        if here:
            self._call("cuDevicePrimaryCtxGetState", self._device, byref(flags), byref(active))
            if active.value:
                self._call("cuCtxPushCurrent", context)  # a framework here holds it, and this thread may be its

    def memory(self) -> tuple[int, int]:
        """Return the bytes free and in all."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def wait(self) -> None:
        """cuCtxSynchronize."""
        self._call("cuCtxSynchronize")

    def ipc_open(self, handle: bytes) -> int:
        """cuIpcOpenMemHandle."""
        address = c_uint64()
        try:
            self._call("cuIpcOpenMemHandle", byref(address), IpcHandle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
        except NotSupportedError as error:
            raise NotSupportedError(
                f"{error}; legacy IPC needs to see the exporter's process id (containers: --pid=host), vmm does not"
            ) from error
        return address.value

    def ipc_close(self, address: int) -> None:
        """cuIpcCloseMemHandle."""
        self._call("cuIpcCloseMemHandle", address)

    def vmm_import(self, fd: int) -> int:
        """cuMemImportFromShareableHandle; the driver takes the descriptor as a pointer's value."""
        handle = c_uint64()
        self._call("cuMemImportFromShareableHandle", byref(handle), fd, _POSIX_DESCRIPTOR)
        return handle.value

    def vmm_release(self, handle: int) -> None:
        """cuMemRelease."""
        self._call("cuMemRelease", handle)

    def vmm_map(self, handle: int, nbytes: int, *, writable: bool) -> int:
        """cuMemAddressReserve, cuMemMap, cuMemSetAccess."""
        reserved = c_uint64()
        self._call("cuMemAddressReserve", byref(reserved), nbytes, 0, 0, 0)
        address = reserved.value
        try:
            self._call("cuMemMap", address, nbytes, 0, handle, 0)
        except BaseException:
            self._call("cuMemAddressFree", address, nbytes)
            raise
        access = AccessDescription(Location(_ON_DEVICE, self._device), _READ_WRITE if writable else _READ)
        try:
            self._call("cuMemSetAccess", address, nbytes, byref(access), 1)
        except BaseException:
            self.vmm_unmap(address, nbytes)
            raise
        return address

    def vmm_unmap(self, address: int, nbytes: int) -> None:
        """cuMemUnmap, cuMemAddressFree."""
        self._call("cuMemUnmap", address, nbytes)
        try:
            self._call("cuMemAddressFree", address, nbytes)
        except CudaError as error:  # of the mapping nothing is left, and addresses are plenty
            import logging

            logging.getLogger(__name__).warning("%d bytes of addresses are not given back: %s", nbytes, error)

    def stream(self) -> int:
        """cuStreamCreate."""
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        return stream.value or 0

    def end_stream(self, stream: int) -> None:
        """cuStreamDestroy."""
        self._call("cuStreamDestroy", stream)

    def copy_out(self, host: int, source: int, nbytes: int, stream: int) -> None:
        """cuMemcpyDtoHAsync."""
        self._call("cuMemcpyDtoHAsync", host, source, nbytes, stream)

    def synchronize(self, stream: int) -> None:
        """cuStreamSynchronize."""
        self._call("cuStreamSynchronize", stream)

    def _numbers(self) -> Iterator[int]:
        count, device = c_int(), c_int()
        self._call("cuDeviceGetCount", byref(count))
        for number in range(count.value):
            self._call("cuDeviceGet", byref(device), number)
            yield device.value

    def _uuid_and_name(self, device: int) -> tuple[bytes, str]:
        uuid, name = Uuid(), ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetUuid", byref(uuid), device)
        self._call("cuDeviceGetName", name, _NAME_BYTES, device)
        return bytes(uuid), name.value.decode()

    def _describe(self, device: int) -> Device:
        uuid, name = self._uuid_and_name(device)
        total = c_size_t()
        self._call("cuDeviceTotalMem", byref(total), device)
        return Device(
            uuid=uuid_of(uuid, name),
            name=name,
            total_bytes=total.value,
            vmm=self._has(VMM_SUPPORTED, device) and self._has(DESCRIPTORS_SUPPORTED, device),
            ipc=self._has(IPC_SUPPORTED, device),
            read_only_registration=self._has(READ_ONLY_REGISTER_SUPPORTED, device),
        )

    def _has(self, attribute: int, device: int) -> bool:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), attribute, device)
        return bool(value.value)

    def _call(self, function: str, *arguments: Any) -> None:
        """Call the driver. Raise the error that its status means."""
        status = (self._functions.get(function) or self._find(function))(*arguments)
        if status != 0:
            raise error_of(function, self._name(status))

    def _find(self, function: str) -> Any:
        version, arguments = FUNCTIONS[function]
        try:
            found = getattr(self._library, function + version)
        except AttributeError:
            raise NotSupportedError(
                f"the NVIDIA driver here is too old: it has no {function + version}; update the driver"
            ) from None
        found.argtypes, found.restype = arguments, c_int
        self._functions[function] = found
        return found

    def _name(self, status: int) -> str:
        """Return a status's name; its number, if this driver does not know it."""
        name = c_char_p()
        self._find("cuGetErrorName")(status, byref(name))
        return name.value.decode() if name.value else str(status)
