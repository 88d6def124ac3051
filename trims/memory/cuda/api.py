"""Protocol of the CUDA calls that trims needs: the driver itself (`bindings`) or a fake that CI can run.

Addresses are plain integers. Every call raises: `CapacityError` when the device is full, `DeviceLostError` when it is
gone, `NotSupportedError` for what this device or container cannot do, `CudaError` for the rest. Devices are named by
UUID everywhere: the same device has other numbers in other processes. A client's first open imports this module, so it
has no dataclass: `dataclasses` and each class of it take longer to make than all driver calls of an open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

#: Length of a legacy IPC handle.
IPC_HANDLE_BYTES = 64


class Device(NamedTuple):
    """One device, as the driver describes it.

    Attributes:
        uuid: Name that nvidia-smi prints: `GPU-` or `MIG-` and 36 characters.
        vmm: Whether it can share memory as POSIX descriptors.
        ipc: Whether it can share memory by legacy IPC handles.
        read_only_registration: Host memory that is mapped read-only can be registered with it.
        peers: UUIDs of devices whose memory it can read directly.
    """

    uuid: str
    name: str
    total_bytes: int
    vmm: bool = True
    ipc: bool = True
    read_only_registration: bool = True
    peers: tuple[str, ...] = ()


def uuid_of(raw: bytes, product: str) -> str:
    """Return a device's UUID as nvidia-smi prints it.

    A part of a partitioned GPU has one of the same 16 bytes as a whole GPU; only the product's name distinguishes them.
    """
    parts = (raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
    return "-".join(("MIG" if " MIG " in product else "GPU", *(part.hex() for part in parts)))


class Borrowing(Protocol):
    """A connection to the driver for a process that reads what others own, on one device once `retain` was called.

    Code that runs in threads of others (a client, a finaliser) takes `retain` and `bound`, which leave a thread as they
    found it. Calls that touch memory work inside `bound`.

    Attributes:
        kind: What `connect` and `connect_borrower` take to make another one.
    """

    kind: str

    def devices(self) -> Sequence[Device]:
        """Return all devices this process can see. Makes no context."""
        ...

    def retain(self, uuid: str) -> Device:
        """Take the device's primary context, which frameworks in this process share, and use it in no thread yet.

        Raises NotSupportedError; CapacityError if the device has no room for one, or gives none just now.
        """
        ...

    def bound(self) -> AbstractContextManager[None]:
        """Let this thread use the device for the length of the block, and then what it used before, if anything."""
        ...

    def dlpack_device(self) -> tuple[int, int]:
        """Return DLPack's kind and number of the device in use. The number is this process's, found by UUID."""
        ...

    def leave(self) -> None:
        """Give the context back; the driver frees what it took when nothing else in the process holds it.

        A calling thread that used it uses nothing then, unless another part of the process holds it. Idempotent.
        """
        ...

    def memory(self) -> tuple[int, int]:
        """Return the bytes free and in all, as of now."""
        ...

    def wait(self) -> None:
        """Wait until the device has done everything that this process has given it to do."""
        ...

    def ipc_open(self, handle: bytes) -> int:
        """Open a handle, and return the allocation's address here. Not in the process that exported it."""
        ...

    def ipc_close(self, address: int) -> None:
        """End one `ipc_open`."""
        ...

    def vmm_import(self, fd: int) -> int:
        """Return a handle for the memory behind a descriptor, which may be closed then."""
        ...

    def vmm_release(self, handle: int) -> None:
        """Give a handle up; mappings of it stay. Memory is freed with its last handle, descriptor and mapping.

        Needs no context.
        """
        ...

    def vmm_map(self, handle: int, nbytes: int, *, writable: bool) -> int:
        """Map all of the memory; return the address. A write to read-only memory ends the context that tried."""
        ...

    def vmm_unmap(self, address: int, nbytes: int) -> None:
        """End a mapping."""
        ...

    def stream(self) -> int:
        """Create a queue of copies."""
        ...

    def end_stream(self, stream: int) -> None:
        """Give a stream back; it must have run empty."""
        ...

    def copy_out(self, host: int, source: int, nbytes: int, stream: int) -> None:
        """Copy from device to host, in the stream's turn."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until all copies of the stream are done. Does not hold the interpreter lock."""
        ...


class Cuda(Borrowing, Protocol):
    """A connection to the driver for the owner of memory, which may also borrow.

    Calls that touch memory work in a thread that called `use` or `bind`, and inside `bound`: they need a context.
    `granularity`, `vmm_create`, `vmm_export` and `vmm_release` need none, only `select`.
    """

    def select(self, uuid: str) -> Device:
        """Choose the device of later calls. Makes no context. Raises NotSupportedError if it is not visible."""
        ...

    def use(self, uuid: str) -> Device:
        """Retain the context of the device with this UUID and make it current in this thread: `retain`, then `bind`."""
        ...

    def bind(self) -> None:
        """Let this thread use the device from now on, whatever it used before."""
        ...

    # -- memory with legacy IPC ------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Return the address of an allocation of its own, never from a pool."""
        ...

    def free(self, address: int) -> None:
        """Free an allocation. Freeing one that another process has open is undefined."""
        ...

    def ipc_export(self, address: int) -> bytes:
        """Return the handle of a whole allocation, 64 bytes; `address` is its beginning."""
        ...

    # -- memory with descriptors -----------------------------------------------------------------------------------

    def granularity(self) -> int:
        """Return the unit of sizes for `vmm_create`, in bytes. Needs no context."""
        ...

    def vmm_create(self, nbytes: int) -> int:
        """Allocate physical memory that is not mapped anywhere; return its handle. Needs no context."""
        ...

    def vmm_export(self, handle: int) -> int:
        """Return a descriptor that stands for the memory and keeps it alive; the caller's to close.

        Needs no context.
        """
        ...

    # -- moving ----------------------------------------------------------------------------------------------------

    def host_allocate(self, nbytes: int) -> int:
        """Allocate pinned host memory; return its address."""
        ...

    def host_free(self, address: int) -> None:
        """Give pinned host memory back."""
        ...

    def host_register(self, address: int, nbytes: int) -> None:
        """Pin memory that is mapped here, perhaps read-only. Both are multiples of the page.

        Raises NotSupportedError if this memory cannot be pinned, CapacityError if it is too much.
        """
        ...

    def host_unregister(self, address: int) -> None:
        """Unpin it."""
        ...

    def copy_in(self, target: int, host: int, nbytes: int, stream: int) -> None:
        """Copy from host to device, in the stream's turn; the host memory must stay until `synchronize`."""
        ...

    def copy_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy from device to device, in the stream's turn; between devices if they are peers."""
        ...

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Queue a store of one byte's value to each of the bytes: by a kernel, not by a copy engine."""
        ...

    # -- computing -------------------------------------------------------------------------------------------------

    def kernels(self, program: bytes, names: Sequence[str]) -> list[int]:
        """Return kernels of a program in PTX, translated for this device. They go with the context.

        Raises TrimsError if the device or the driver is too old for the program.
        """
        ...

    def launch(self, kernel: int, blocks: int, threads: int, arguments: Sequence[int], stream: int) -> None:
        """Run a kernel in the stream's turn.

        Args:
            arguments: Addresses of the device and numbers, of 64 bits each.
            stream: Where it waits for its turn.
        """
        ...
