"""The CUDA driver through NVIDIA's cuda-bindings (package cuda-bindings, extra `gpu`).

Calls release the interpreter lock as the package does. Not covered: which way of sharing is used (`drivers`).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from typing import TYPE_CHECKING, Any

from trims.core.errors import CudaError, NotSupportedError, TrimsError
from trims.memory.cuda.api import IPC_HANDLE_BYTES, Device, uuid_of
from trims.memory.cuda.statuses import error_of
from trims.process.packages import install_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

try:
    from cuda.bindings import driver as _driver
except ImportError as missing:
    raise NotSupportedError(
        f"the package cuda-bindings is not installed ({missing}); {install_words('trims[gpu]')}"
    ) from None

log = logging.getLogger(__name__)
_LAZY_PEER_ACCESS = 1
_REGISTER_READ_ONLY = 8
_NON_BLOCKING = 1
_DLPACK_CUDA = 2


class Driver:
    """See `trims.memory.cuda.api.Cuda`, whose methods these are."""

    kind = "driver"

    def __init__(self) -> None:
        try:
            _call("cuInit", 0)
        except TrimsError:
            raise
        except Exception as error:  # the package raises its own kinds when it finds no driver library
            raise NotSupportedError(f"there is no NVIDIA driver here: {error}") from error
        self._device: Any = None
        self._context: Any = None

    def devices(self) -> Sequence[Device]:
        """Return all devices this process can see."""
        return [_describe(device, _peers(device)) for device in _all()]

    def retain(self, uuid: str) -> Device:
        """cuDevicePrimaryCtxRetain. Raises CapacityError if none can be had just now."""
        described = self.select(uuid)
        self._context = _call("cuDevicePrimaryCtxRetain", self._device)
        return described

    def select(self, uuid: str) -> Device:
        """cuDeviceGet, by UUID."""
        for device in _all():
            if _uuid(device) == uuid:
                self._device = device
                return _describe(device, _peers(device))
        seen = ", ".join(device.uuid for device in self.devices()) or "none"
        raise NotSupportedError(f"the device {uuid} is not visible to this process, which sees {seen}")

    def use(self, uuid: str) -> Device:
        """Take its primary context, and make it current in this thread."""
        device = self.retain(uuid)
        self.bind()
        return device

    def bind(self) -> None:
        """Make the context current in this thread, instead of what was."""
        _call("cuCtxSetCurrent", self._context)

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """cuCtxPushCurrent, and cuCtxPopCurrent after the block."""
        _call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent")

    def dlpack_device(self) -> tuple[int, int]:
        """kDLCUDA. The driver and the frameworks over it number devices alike in one process."""
        return _DLPACK_CUDA, int(self._device)

    def leave(self) -> None:
        """Release the primary context. Idempotent."""
        context, self._context = self._context, None
        if context is None:
            return
        # The release ends it if nothing else holds it, and leaves it current all the same: then this thread's next call
        # of the driver, from any library, would meet a context that is destroyed. Another one is not ours to move.
        here = int(_call("cuCtxGetCurrent")) == int(context)
        if here:
            _call("cuCtxPopCurrent")
        _call("cuDevicePrimaryCtxRelease", self._device)
        if here and _call("cuDevicePrimaryCtxGetState", self._device)[1]:
            _call("cuCtxPushCurrent", context)  # a framework in this process holds it, and this thread may be its

    def memory(self) -> tuple[int, int]:
        """Return the bytes free and in all."""
        free, total = _call("cuMemGetInfo")
        return int(free), int(total)

    def wait(self) -> None:
        """cuCtxSynchronize."""
        _call("cuCtxSynchronize")

    def allocate(self, nbytes: int) -> int:
        """cuMemAlloc."""
        return int(_call("cuMemAlloc", nbytes))

    def free(self, address: int) -> None:
        """cuMemFree."""
        _call("cuMemFree", address)

    def ipc_export(self, address: int) -> bytes:
        """cuIpcGetMemHandle."""
        # By its address, as the package's 13.5 shows no fields; and while it has a name, for its memory goes with it.
        handle = _call("cuIpcGetMemHandle", address)
        return ctypes.string_at(handle.getPtr(), IPC_HANDLE_BYTES)

    def ipc_open(self, handle: bytes) -> int:
        """cuIpcOpenMemHandle."""
        made = _driver.CUipcMemHandle()
        ctypes.memmove(made.getPtr(), handle, IPC_HANDLE_BYTES)
        try:
            return int(_call("cuIpcOpenMemHandle", made, _LAZY_PEER_ACCESS))
        except NotSupportedError as error:
            raise NotSupportedError(
                f"{error}; legacy IPC needs to see the exporter's process id (containers: --pid=host), vmm does not"
            ) from error

    def ipc_close(self, address: int) -> None:
        """cuIpcCloseMemHandle."""
        _call("cuIpcCloseMemHandle", address)

    def granularity(self) -> int:
        """cuMemGetAllocationGranularity, the minimum."""
        minimum = _driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(_call("cuMemGetAllocationGranularity", self._property(), minimum))

    def vmm_create(self, nbytes: int) -> int:
        """cuMemCreate."""
        return int(_call("cuMemCreate", nbytes, self._property(), 0))

    def vmm_export(self, handle: int) -> int:
        """cuMemExportToShareableHandle."""
        return int(_call("cuMemExportToShareableHandle", handle, _posix(), 0))

    def vmm_import(self, fd: int) -> int:
        """cuMemImportFromShareableHandle; the driver takes the descriptor as a pointer's value."""
        return int(_call("cuMemImportFromShareableHandle", fd, _posix()))

    def vmm_release(self, handle: int) -> None:
        """cuMemRelease."""
        _call("cuMemRelease", handle)

    def vmm_map(self, handle: int, nbytes: int, *, writable: bool) -> int:
        """cuMemAddressReserve, cuMemMap, cuMemSetAccess."""
        address = int(_call("cuMemAddressReserve", nbytes, 0, 0, 0))
        try:
            _call("cuMemMap", address, nbytes, 0, handle, 0)
        except BaseException:
            _call("cuMemAddressFree", address, nbytes)
            raise
        try:
            _call("cuMemSetAccess", address, nbytes, [self._access(writable)], 1)
        except BaseException:
            self.vmm_unmap(address, nbytes)
            raise
        return address

    def vmm_unmap(self, address: int, nbytes: int) -> None:
        """cuMemUnmap, cuMemAddressFree."""
        _call("cuMemUnmap", address, nbytes)
        try:
            _call("cuMemAddressFree", address, nbytes)
        except CudaError as error:  # of the mapping nothing is left, and addresses are plenty
            log.warning("%d bytes of addresses are not given back: %s", nbytes, error)

    def host_allocate(self, nbytes: int) -> int:
        """cuMemHostAlloc."""
        return int(_call("cuMemHostAlloc", nbytes, 0))

    def host_free(self, address: int) -> None:
        """cuMemFreeHost."""
        _call("cuMemFreeHost", address)

    def host_register(self, address: int, nbytes: int) -> None:
        """cuMemHostRegister, for memory that may be mapped read-only."""
        _call("cuMemHostRegister", address, nbytes, _REGISTER_READ_ONLY)

    def host_unregister(self, address: int) -> None:
        """cuMemHostUnregister."""
        _call("cuMemHostUnregister", address)

    def stream(self) -> int:
        """cuStreamCreate."""
        return int(_call("cuStreamCreate", _NON_BLOCKING))

    def end_stream(self, stream: int) -> None:
        """cuStreamDestroy."""
        _call("cuStreamDestroy", stream)

    def copy_in(self, target: int, host: int, nbytes: int, stream: int) -> None:
        """cuMemcpyHtoDAsync."""
        _call("cuMemcpyHtoDAsync", target, host, nbytes, stream)

    def copy_out(self, host: int, source: int, nbytes: int, stream: int) -> None:
        """cuMemcpyDtoHAsync."""
        _call("cuMemcpyDtoHAsync", host, source, nbytes, stream)

    def copy_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """cuMemcpyDtoDAsync, which knows the devices by their addresses."""
        _call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """cuMemsetD8Async."""
        _call("cuMemsetD8Async", target, value, nbytes, stream)

    def synchronize(self, stream: int) -> None:
        """cuStreamSynchronize."""
        _call("cuStreamSynchronize", stream)

    def kernels(self, program: bytes, names: Sequence[str]) -> list[int]:
        """cuModuleLoadData, cuModuleGetFunction."""
        module = _call("cuModuleLoadData", program + b"\0")
        return [int(_call("cuModuleGetFunction", module, name.encode())) for name in names]

    def launch(self, kernel: int, blocks: int, threads: int, arguments: Sequence[int], stream: int) -> None:
        """cuLaunchKernel. The driver copies the arguments before it returns."""
        values = [ctypes.c_uint64(value) for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (blocks, 1, 1, threads, 1, 1)
        _call("cuLaunchKernel", kernel, *shape, 0, stream, ctypes.addressof(pointers), 0)

    def _property(self) -> Any:
        prop = _driver.CUmemAllocationProp()
        prop.type = _driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = _driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = int(self._device)
        prop.requestedHandleTypes = _posix()
        # So that a network card or a disk may write there by itself. It may make the granularity larger, which is asked
        # for with the same property.
        prop.allocFlags.gpuDirectRDMACapable = int(self._has_direct_access())
        return prop

    def _has_direct_access(self) -> bool:
        attribute = _driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        return bool(_call("cuDeviceGetAttribute", attribute, self._device))

    def _access(self, writable: bool) -> Any:
        flags = _driver.CUmemAccess_flags
        access = _driver.CUmemAccessDesc()
        access.location.type = _driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = int(self._device)
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        return access


def _posix() -> Any:
    return _driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _all() -> list[Any]:
    return [_call("cuDeviceGet", number) for number in range(_call("cuDeviceGetCount"))]


def _uuid(device: Any) -> str:
    # Before CUDA 13 the name without a version gives the UUID of the whole GPU.
    ask = "cuDeviceGetUuid_v2" if hasattr(_driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    raw = bytes(_call(ask, device).bytes)
    return uuid_of(raw, _name(device))


def _name(device: Any) -> str:
    return bytes(_call("cuDeviceGetName", 96, device)).split(b"\0")[0].decode()


def _peers(device: Any) -> tuple[str, ...]:
    """Return the UUIDs of devices whose memory this one can read directly, over NVLink or PCIe."""
    others = (other for other in _all() if int(other) != int(device))
    return tuple(_uuid(other) for other in others if _call("cuDeviceCanAccessPeer", device, other))


def _describe(device: Any, peers: tuple[str, ...]) -> Device:
    attribute = _driver.CUdevice_attribute

    def has(name: str) -> bool:
        return bool(_call("cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    return Device(
        uuid=_uuid(device),
        name=_name(device),
        total_bytes=int(_call("cuDeviceTotalMem", device)),
        vmm=has("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED") and has("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
        ipc=has("IPC_EVENT_SUPPORTED"),
        read_only_registration=has("READ_ONLY_HOST_REGISTER_SUPPORTED"),
        peers=peers,
    )


def _call(function: str, *arguments: Any) -> Any:
    """Call the driver. Return its results without the status, or raise the error that the status means."""
    status, *results = getattr(_driver, function)(*arguments)
    if int(status) != 0:
        raise error_of(function, getattr(status, "name", str(status)))
    return results[0] if len(results) == 1 else tuple(results)
