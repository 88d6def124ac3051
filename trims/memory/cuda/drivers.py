"""Sharing one image on a device between processes: two ways behind one protocol.

`VmmMemory` hands out a descriptor: borrowers map it read-only, the device holds them to that mapping, and the memory
lives for as long as any process holds it. `IpcMemory` hands out a handle of 64 bytes. It works where descriptors do
not, but nothing enforces reading, and freeing under a borrower is undefined: the owner frees only when every borrower
has gone.

The owner's half (`allocate`, `export`, `free`) runs in the keeper, the borrower's (`open`, `close`) in the process that
attaches, and in the keeper's mover. Not covered: which process that is, and when freeing is allowed (`trims.keeper`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from trims.core.errors import BadMessageError, CallerError, NotSupportedError
from trims.core.units import align_up
from trims.memory.cuda.api import IPC_HANDLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.memory.cuda.api import Borrowing, Cuda, Device

_T = TypeVar("_T")
#: Block of the driver, in bytes: smaller allocations share one, and a handle would expose the neighbours.
_OWN_BLOCK_BYTES = 2 << 20


class Allocation:
    """Memory of one image at its owner.

    Attributes:
        address: Where it lies at its owner; 0 where the owner has it mapped only while it reaches it.
        handle: The driver's own name for it.
    """

    __slots__ = ("address", "handle", "nbytes", "size_bytes")

    def __init__(self, nbytes: int, size_bytes: int, address: int = 0, handle: int = 0) -> None:
        self.nbytes = nbytes
        self.size_bytes = size_bytes
        self.address = address
        self.handle = handle


class Export(NamedTuple):
    """Handle that lets another process open an allocation.

    Attributes:
        driver: `vmm` or `ipc`.
        device: UUID.
        handle: The legacy handle, empty for `vmm`.
        fd: The descriptor, -1 for `ipc`. It belongs to the export and keeps the memory alive: close it promptly.
        cuda: What reaches the device: see `trims.memory.cuda.connect.connect`.
    """

    driver: str
    device: str
    size_bytes: int
    handle: bytes = b""
    fd: int = -1
    cuda: str = "driver"

    def close(self) -> None:
        """Close the descriptor, if there is one."""
        if self.fd >= 0:
            os.close(self.fd)


class Opened(NamedTuple):
    """An allocation of another process, open here: `address` is its first byte."""

    address: int
    size_bytes: int


class BorrowedMemory(Protocol):
    """A way to read what another process shares, on the device that `cuda` uses."""

    name: str
    #: Whether a borrower that writes to memory from `open` is stopped.
    read_only: bool

    def open(self, export: Export, *, peer: bool = False, writable: bool = False) -> Opened:
        """Map another process's allocation; the export may be closed then.

        Args:
            peer: The memory lies on another device.
            writable: Map it for writing, as the owner's mover does. Where `read_only` is False, it is writable anyway.
        """
        ...

    def close(self, opened: Opened) -> None:
        """Close memory that `open` or, at its owner, `reach` returned."""
        ...


class DeviceMemory(BorrowedMemory, Protocol):
    """A way to share memory of the device that `cuda` uses."""

    #: Whether the owner's calls but `reach` need a context, which takes hundreds of megabytes of the device.
    needs_context: bool

    def allocate(self, nbytes: int) -> Allocation:
        """Allocate memory to fill. Raises CapacityError."""
        ...

    def export(self, allocation: Allocation) -> Export:
        """Let another process open it. May be called as often as there are borrowers."""
        ...

    def reach(self, allocation: Allocation, *, writable: bool = False) -> Opened:
        """Let the owner itself read it, and write it before it is shared; end it with `close`. Needs a context."""
        ...

    def free(self, allocation: Allocation) -> None:
        """Give it up. Every borrower of an `ipc` allocation must have closed it or be dead."""
        ...


class VmmBorrower:
    """Virtual memory management: physical memory behind a descriptor, mapped read-only by borrowers.

    Each borrower maps it read-only of its own accord: the descriptor carries no right of access, so a process that
    sets out to can map it writable. This guards against accidents and bugs, not against a hostile tenant. The sealed
    memfd of the host (`trims.memory.memfd`) does stop a hostile tenant.
    """

    name = "vmm"
    read_only = True

    def __init__(self, cuda: Borrowing, device: Device) -> None:
        if not device.vmm:
            raise NotSupportedError(f"{device.name} ({device.uuid}) cannot share memory as descriptors; use ipc")
        self._cuda = cuda
        self._device = device

    def open(self, export: Export, *, peer: bool = False, writable: bool = False) -> Opened:
        """See `DeviceMemory.open`."""
        _check(export, self.name, self._device, peer=peer)
        handle = self._cuda.vmm_import(export.fd)
        try:
            return Opened(self._cuda.vmm_map(handle, export.size_bytes, writable=writable), export.size_bytes)
        finally:
            self._cuda.vmm_release(handle)  # the mapping keeps the memory

    def close(self, opened: Opened) -> None:
        """See `DeviceMemory.close`."""
        self._cuda.vmm_unmap(opened.address, opened.size_bytes)


class VmmMemory(VmmBorrower):
    """The owner's half of virtual memory management."""

    #: cuMemCreate, cuMemExportToShareableHandle and cuMemRelease need cuInit only, as an H200 has shown.
    needs_context = False

    def __init__(self, cuda: Cuda, device: Device) -> None:
        super().__init__(cuda, device)
        self._owner = cuda

    def allocate(self, nbytes: int) -> Allocation:
        """See `DeviceMemory.allocate`."""
        size = align_up(nbytes, self._owner.granularity())
        return Allocation(nbytes, size, handle=self._owner.vmm_create(size))

    def export(self, allocation: Allocation) -> Export:
        """See `DeviceMemory.export`."""
        fd = self._owner.vmm_export(allocation.handle)
        return Export(self.name, self._device.uuid, allocation.size_bytes, fd=fd, cuda=self._owner.kind)

    def reach(self, allocation: Allocation, *, writable: bool = False) -> Opened:
        """See `DeviceMemory.reach`."""
        size = allocation.size_bytes
        return Opened(self._owner.vmm_map(allocation.handle, size, writable=writable), size)

    def free(self, allocation: Allocation) -> None:
        """See `DeviceMemory.free`: borrowers keep what they have mapped, and the device keeps it charged."""
        self._owner.vmm_release(allocation.handle)


class IpcBorrower:
    """Legacy IPC: one raw allocation for each image, opened by a handle of 64 bytes."""

    name = "ipc"
    read_only = False

    def __init__(self, cuda: Borrowing, device: Device) -> None:
        if not device.ipc:
            raise NotSupportedError(f"{device.name} ({device.uuid}) does not support CUDA IPC; use vmm")
        self._cuda = cuda
        self._device = device

    def open(self, export: Export, *, peer: bool = False, writable: bool = False) -> Opened:  # noqa: ARG002 - always is
        """See `DeviceMemory.open`."""
        _check(export, self.name, self._device, peer=peer)
        if len(export.handle) != IPC_HANDLE_BYTES:
            raise CallerError(f"an IPC handle has {IPC_HANDLE_BYTES} bytes, not {len(export.handle)}")
        return Opened(self._cuda.ipc_open(export.handle), export.size_bytes)

    def close(self, opened: Opened) -> None:
        """See `DeviceMemory.close`."""
        if opened.size_bytes:
            self._cuda.ipc_close(opened.address)


class IpcMemory(IpcBorrower):
    """The owner's half of legacy IPC."""

    needs_context = True

    def __init__(self, cuda: Cuda, device: Device) -> None:
        super().__init__(cuda, device)
        self._owner = cuda

    def allocate(self, nbytes: int) -> Allocation:
        """See `DeviceMemory.allocate`."""
        size = align_up(nbytes, _OWN_BLOCK_BYTES)
        return Allocation(nbytes, size, self._owner.allocate(size))

    def export(self, allocation: Allocation) -> Export:
        """See `DeviceMemory.export`."""
        handle = self._owner.ipc_export(allocation.address)
        return Export(self.name, self._device.uuid, allocation.size_bytes, handle=handle, cuda=self._owner.kind)

    def reach(self, allocation: Allocation, *, writable: bool = False) -> Opened:  # noqa: ARG002 - always is
        """See `DeviceMemory.reach`."""
        return Opened(allocation.address, 0)

    def free(self, allocation: Allocation) -> None:
        """See `DeviceMemory.free`."""
        self._owner.free(allocation.address)


def device_memory(name: str, cuda: Cuda, device: Device) -> DeviceMemory:
    """Return the owner's driver of this name; `auto` for the device's best. Raises NotSupportedError saying why not."""
    if name == "auto":
        name = "vmm" if device.vmm else "ipc"
    drivers: dict[str, type[VmmMemory | IpcMemory]] = {"vmm": VmmMemory, "ipc": IpcMemory}
    return _named(drivers, name)(cuda, device)


def borrowed_memory(name: str, cuda: Borrowing, device: Device) -> BorrowedMemory:
    """Return the borrower's driver of this name. Raises NotSupportedError saying why not."""
    drivers: dict[str, type[VmmBorrower | IpcBorrower]] = {"vmm": VmmBorrower, "ipc": IpcBorrower}
    return _named(drivers, name)(cuda, device)


def _named(drivers: dict[str, type[_T]], name: str) -> type[_T]:
    if name not in drivers:
        raise CallerError(f"there is no GPU memory driver {name!r}; there are auto, vmm and ipc")
    return drivers[name]


def _check(export: Export, driver: str, device: Device, *, peer: bool) -> None:
    if export.driver != driver:
        raise CallerError(f"an export of {export.driver} was given to {driver}")
    if export.device != device.uuid and not (peer and export.device in device.peers):
        raise NotSupportedError(f"the memory lies on {export.device}, this process uses {device.uuid}")


def export_message(export: Export) -> dict[str, str | int]:
    """Return an export as a message, on whichever socket; its descriptor travels beside it."""
    return {
        "driver": export.driver,
        "device": export.device,
        "size_bytes": export.size_bytes,
        "handle": export.handle.hex(),
        "cuda": export.cuda,
    }


def export_of(message: Mapping[str, Any], fd: int) -> Export:
    """Return the export that a message stands for. Raises BadMessageError."""
    try:
        size_bytes, handle = int(message["size_bytes"]), bytes.fromhex(message["handle"])
        return Export(str(message["driver"]), str(message["device"]), size_bytes, handle, fd, str(message["cuda"]))
    except (KeyError, ValueError, TypeError) as error:
        raise BadMessageError(f"no export of device memory: {error!r}"[:200]) from error
