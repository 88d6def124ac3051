"""A CUDA driver without a device: device memory is files in a folder, shared by all processes that use the folder.

It keeps the driver's promises that trims relies on, and breaks where the driver breaks: memory runs out; what has a
descriptor lives until its last holder is gone, dead holders included; legacy allocations die with their owner, and
freeing one under a borrower takes its pages away (SIGBUS); a write to a read-only mapping ends the writer
(SIGSEGV); memory of another device can be mapped only by a peer; copies happen later, in another thread; threads must
be bound, and a thread uses one device at a time; a lost device fails every call, and a poisoned context every call that
needs it. A context takes memory; making, exporting and releasing memory with descriptors needs none.

Holders are counted by the kernel: each process that keeps memory alive has a shared lock on its file.

A borrower needs no more than to read the folder, as in a sandbox: it takes locks on descriptors for reading, and leaves
it to others to remove files of the dead. Its context is memory of its own then, and is not counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import mmap
import os
import struct
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import CudaError, DeviceLostError, NoSpaceError, NotSupportedError, TrimsError
from trims.core.units import format_bytes
from trims.memory.cuda.api import Device
from trims.memory.mapping import c_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GRANULARITY_BYTES = 2 << 20
#: Bytes that a process's context takes of the device.
CONTEXT_BYTES = 16 << 20
_HANDLE = struct.Struct(">8sQQQ32x")
_MAGIC = b"fakecuda"
_DLPACK_CPU = 1
_DEVICES = "devices.json"
_LOCK = "lock"
#: Errors of writing where a process may only read: a read-only mount, or Landlock.
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
#: Copies take a shared lock on it.
_COPIES = "copies"
#: There while the driver is too old for kernels.
_OLD = "old"
#: Numbers of handles, streams and files: unique in this process.
_numbers = itertools.count(1)
#: Number of connections of this process that share a device's context, and a lock that guards the counts.
_holders: Counter[str] = Counter()
_counting = threading.Lock()


class _Thread(threading.local):
    """The contexts a thread uses: the last one is current."""

    def __init__(self) -> None:
        self.contexts: list[str] = []


_thread = _Thread()


def current() -> str | None:
    """Return the context that this thread uses, over whichever connection: where its device is.

    None if it uses none.
    """
    return _thread.contexts[-1] if _thread.contexts else None


def make_devices(folder: Path, devices: Sequence[Device]) -> str:
    """Set a machine up in an empty folder. Return its name, for `trims.memory.cuda.connect.connect`."""
    (folder / _DEVICES).write_text(json.dumps([device._asdict() for device in devices]))
    for name in (_LOCK, _COPIES):
        (folder / name).touch()
    return f"fake:{folder}"


def lose_device(folder: Path, uuid: str) -> None:
    """Make every call on this device fail from now on, in all processes."""
    (folder / f"lost.{uuid}").touch()


def poison_context(folder: Path, pid: int) -> None:
    """Make every call that needs a context fail in one process from now on, as after a fault of a kernel there."""
    (folder / f"poisoned.{pid}").touch()


@contextlib.contextmanager
def copies_held(folder: Path) -> Iterator[None]:
    """Hold up the copies of all processes for the block."""
    with (folder / _COPIES).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def refuse_kernels(folder: Path) -> None:
    """Make the driver too old for kernels from now on, in all processes."""
    (folder / _OLD).touch()


@contextlib.contextmanager
def contexts_refused(folder: Path, uuid: str, status: str = "CUDA_ERROR_DEVICE_UNAVAILABLE") -> Iterator[None]:
    """Make no context on the device for the block; those that exist stay. By default as one program has it alone."""
    path = folder / f"refused.{uuid}"
    path.write_text(status)
    try:
        yield
    finally:
        path.unlink()


class FakeCuda:
    """See `trims.memory.cuda.api.Cuda`.

    Args:
        folder: Made by `make_devices`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.kind = f"fake:{folder}"
        if not (self._folder / _DEVICES).exists():
            raise NotSupportedError(f"{folder} holds no fake devices; see trims.testing.fake_cuda.make_devices")
        self._device: Device | None = None
        self._context_fd = -1
        self._files: dict[int, int] = {}  # address or handle -> descriptor that keeps the memory alive
        self._sizes: dict[int, int] = {}
        self._names: dict[int, Path] = {}
        self._imported: dict[bytes, tuple[int, int]] = {}
        self._queues: dict[int, tuple[ThreadPoolExecutor, list[Future[int]]]] = {}

    # -- devices ---------------------------------------------------------------------------------------------------

    def devices(self) -> Sequence[Device]:
        """Return the devices given to `make_devices`."""
        told = json.loads((self._folder / _DEVICES).read_text())
        return [Device(**{**given, "peers": tuple(given["peers"])}) for given in told]

    def retain(self, uuid: str) -> Device:
        """Make a context, which takes memory."""
        found = self.select(uuid)
        if self._context_fd < 0:
            self._not_lost()
            with contextlib.suppress(FileNotFoundError):
                raise _error_of("cuDevicePrimaryCtxRetain", (self._folder / f"refused.{uuid}").read_text())
            self._context_fd, _ = self._take("context", CONTEXT_BYTES)
            with _counting:
                _holders[self._context] += 1
        return found

    def select(self, uuid: str) -> Device:
        """Choose the device."""
        found = next((device for device in self.devices() if device.uuid == uuid), None)
        if found is None:
            raise NotSupportedError(f"the device {uuid} is not visible to this process")
        self._device = found
        return found

    def use(self, uuid: str) -> Device:
        """Make a context, and let this thread use it."""
        device = self.retain(uuid)
        self.bind()
        return device

    def bind(self) -> None:
        """Let this thread use the device, and not what it used."""
        _thread.contexts[-1:] = [self._context]

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Let this thread use the device for the block, on top of what it uses."""
        _thread.contexts.append(self._context)
        try:
            yield
        finally:
            _thread.contexts.pop()

    def dlpack_device(self) -> tuple[int, int]:
        """Return kDLCPU: device memory of the fake is memory of this process, and frameworks may read it as such."""
        self._ready()
        return _DLPACK_CPU, 0

    def leave(self) -> None:
        """Give the context back."""
        if self._context_fd < 0:
            return
        os.close(self._context_fd)
        self._context_fd = -1
        with _counting:
            _holders[self._context] -= 1
            ended = not _holders[self._context]
        if ended and current() == self._context:
            _thread.contexts.pop()

    def memory(self) -> tuple[int, int]:
        """Return the bytes free and in all."""
        device = self._ready()
        return self.free_bytes(device), device.total_bytes

    def free_bytes(self, device: Device) -> int:
        """Return the free bytes of any device, without a context, as NVML does."""
        with self._locked():
            return device.total_bytes - self._used(device.uuid)

    def process_bytes(self, device: Device) -> dict[int, int]:
        """Return the bytes that each process has taken of any device, without a context, as NVML does."""
        found: Counter[int] = Counter()
        with self._locked():
            self._used(device.uuid)
            for path in self._folder.glob(f"memory.{device.uuid}.*"):
                found[int(path.name.split(".")[3])] += path.stat().st_size
        return dict(found)

    def wait(self) -> None:
        """Wait for all copies of all streams."""
        self._ready()
        for stream in list(self._queues):
            self.synchronize(stream)

    # -- memory with legacy IPC ------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Allocate memory that dies with this process."""
        fd, path = self._take("raw", nbytes)
        address = _map(fd, nbytes, writable=True)
        self._files[address], self._sizes[address], self._names[address] = fd, nbytes, path
        return address

    def free(self, address: int) -> None:
        """Free an allocation: a process that still has it open loses the pages."""
        self._ready()
        fd = self._files.pop(address)
        self._names.pop(address).unlink()
        c_library().munmap(address, self._sizes.pop(address))
        os.ftruncate(fd, 0)
        os.close(fd)

    def ipc_export(self, address: int) -> bytes:
        """Return a handle that names the process, as the driver's do, and the whole allocation of the address."""
        self._ready()
        begin = next((each for each in self._names if each <= address < each + self._sizes[each]), None)
        if begin is None:
            raise CudaError("ipc_export: CUDA_ERROR_INVALID_VALUE")
        number = int(self._names[begin].name.rsplit(".", 1)[1])
        return _HANDLE.pack(_MAGIC, os.getpid(), number, _process_ids())

    def ipc_open(self, handle: bytes) -> int:
        """Open a handle. Opening again gives the same address."""
        self._ready()
        if handle in self._imported:
            address, count = self._imported[handle]
            self._imported[handle] = (address, count + 1)
            return address
        magic, process, number, namespace = _HANDLE.unpack(handle)
        if magic != _MAGIC or process == os.getpid():
            raise CudaError("ipc_open: CUDA_ERROR_INVALID_VALUE")
        if namespace != _process_ids():
            raise NotSupportedError("ipc_open: CUDA_ERROR_INVALID_CONTEXT: the exporter's process ids are not visible")
        path = next(self._folder.glob(f"*.raw.{process}.{number}"), None)
        if path is None or not _held(path):
            raise CudaError("ipc_open: CUDA_ERROR_INVALID_HANDLE: the exporter has freed it or is dead")
        self._check_reach(path.name)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            address = _map(fd, size, writable=True)
        finally:
            os.close(fd)
        self._imported[handle], self._sizes[address] = (address, 1), size
        return address

    def ipc_close(self, address: int) -> None:
        """Close once; the last close unmaps."""
        self._ready()
        handle = next(handle for handle, (opened, _) in self._imported.items() if opened == address)
        count = self._imported[handle][1] - 1
        self._imported[handle] = (address, count)
        if count == 0:
            del self._imported[handle]
            c_library().munmap(address, self._sizes.pop(address))

    # -- memory with descriptors -----------------------------------------------------------------------------------

    def granularity(self) -> int:
        """Return 2 MiB. Needs no context."""
        self._not_lost()
        return GRANULARITY_BYTES

    def vmm_create(self, nbytes: int) -> int:
        """Create a file that lasts while a process holds it. Needs no context."""
        if nbytes % GRANULARITY_BYTES:
            raise CudaError(f"vmm_create: CUDA_ERROR_INVALID_VALUE: {nbytes} bytes")
        fd, _ = self._take("vmm", nbytes)
        return self._handle(fd)

    def vmm_export(self, handle: int) -> int:
        """Return a descriptor, which shares the lock. Needs no context."""
        self._not_lost()
        return os.dup(self._files[handle])

    def vmm_import(self, fd: int) -> int:
        """Return a handle, which is a holder of its own."""
        self._ready()
        own = _open_again(fd)
        fcntl.flock(own, fcntl.LOCK_SH)
        return self._handle(own)

    def vmm_release(self, handle: int) -> None:
        """Release a handle; mappings stay. Needs no context."""
        self._not_lost()
        os.close(self._files.pop(handle))

    def vmm_map(self, handle: int, nbytes: int, *, writable: bool) -> int:
        """Map the memory; the mapping is a holder, too."""
        self._ready()
        self._check_reach(os.path.basename(os.readlink(f"/proc/self/fd/{self._files[handle]}")))
        address = _map(self._files[handle], nbytes, writable=writable)
        self._files[address] = os.dup(self._files[handle])
        return address

    def vmm_unmap(self, address: int, nbytes: int) -> None:
        """Unmap, which ends that holder."""
        self._ready()
        fd = self._files.pop(address)  # before the address is free: another thread may be given it at once
        c_library().munmap(address, nbytes)
        os.close(fd)

    # -- moving ----------------------------------------------------------------------------------------------------

    def host_allocate(self, nbytes: int) -> int:
        """Allocate ordinary memory."""
        self._ready()
        address = _map(-1, nbytes, writable=True)
        self._sizes[address] = nbytes
        return address

    def host_free(self, address: int) -> None:
        """Unmap host memory."""
        self._ready()
        c_library().munmap(address, self._sizes.pop(address))

    def host_register(self, address: int, nbytes: int) -> None:
        """Register whole pages, and each only once."""
        if not self._ready().read_only_registration:
            raise NotSupportedError("host_register: CUDA_ERROR_NOT_SUPPORTED")
        if address % mmap.PAGESIZE or nbytes % mmap.PAGESIZE or -address in self._sizes:
            raise CudaError("host_register: CUDA_ERROR_INVALID_VALUE")
        self._sizes[-address] = nbytes

    def host_unregister(self, address: int) -> None:
        """Forget it."""
        self._ready()
        del self._sizes[-address]

    def stream(self) -> int:
        """Start a stream, which is a thread."""
        self._ready()
        number = next(_numbers)
        self._queues[number] = (ThreadPoolExecutor(1, thread_name_prefix="fake-cuda"), [])
        return number

    def end_stream(self, stream: int) -> None:
        """End the stream's thread."""
        self._queues.pop(stream)[0].shutdown(wait=True)

    def copy_in(self, target: int, host: int, nbytes: int, stream: int) -> None:
        """Copy later, in the stream's thread."""
        self._copy(target, host, nbytes, stream)

    def copy_out(self, host: int, source: int, nbytes: int, stream: int) -> None:
        """Copy later, in the stream's thread."""
        self._copy(host, source, nbytes, stream)

    def copy_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy later, in the stream's thread."""
        self._copy(target, source, nbytes, stream)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Fill later, in the stream's thread."""
        host = ctypes.create_string_buffer(bytes([value]) * nbytes, nbytes)
        self._queue(lambda: ctypes.memmove(target, host, nbytes), stream)  # which keeps `host` until then

    def synchronize(self, stream: int) -> None:
        """Wait until the stream has done all."""
        self._ready()
        waiting = self._queues[stream][1]
        while waiting:
            waiting.pop(0).result()

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._queue(lambda: ctypes.memmove(target, source, nbytes), stream)

    def _queue(self, work: Callable[[], object], stream: int) -> None:
        self._ready()
        executor, waiting = self._queues[stream]

        def in_turn() -> int:
            with (self._folder / _COPIES).open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_SH)
            work()
            return 0

        waiting.append(executor.submit(in_turn))

    # -- computing -------------------------------------------------------------------------------------------------

    def kernels(self, program: bytes, names: Sequence[str]) -> list[int]:
        """Return a number for each kernel. Known are those of the checksum, which this process computes instead."""
        self._ready()
        if (self._folder / _OLD).exists():
            raise _error_of("cuModuleLoadData", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
        if not all(name in ("plain", "products") and f".entry {name}(".encode() in program for name in names):
            raise _error_of("cuModuleGetFunction", "CUDA_ERROR_NOT_FOUND")
        return [next(_numbers) for _ in names]

    def launch(self, kernel: int, blocks: int, threads: int, arguments: Sequence[int], stream: int) -> None:  # noqa: ARG002 - the protocol's
        """Compute the sum of rows later, in the stream's thread. See `trims/memory/cuda/checksum.cu`."""
        from trims.memory.row_sums import ROW_BYTES, part  # borrowers import this module, and launch nothing

        data, groups, first_row, _, total = arguments

        def add() -> None:
            rows = (ctypes.c_ubyte * (16 * ROW_BYTES * groups)).from_address(data)
            place = ctypes.c_uint64.from_address(total)
            place.value += part(memoryview(rows), first_row * ROW_BYTES)

        self._queue(add, stream)

    # -- books -----------------------------------------------------------------------------------------------------

    @property
    def _context(self) -> str:
        """Return the context's name: all connections of a process to one device share it."""
        if self._device is None:
            raise CudaError("CUDA_ERROR_INVALID_CONTEXT: no device was taken")
        return str(self._folder / self._device.uuid)

    def _ready(self) -> Device:
        if self._device is None or self._context_fd < 0 or current() != self._context:
            raise CudaError("CUDA_ERROR_INVALID_CONTEXT: this thread uses no device")
        if (self._folder / f"poisoned.{os.getpid()}").exists():
            raise _error_of("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")
        return self._not_lost()

    def _not_lost(self) -> Device:
        assert self._device is not None, "select() comes first"
        if (self._folder / f"lost.{self._device.uuid}").exists():
            raise DeviceLostError(f"{self._device.uuid} is lost (CUDA_ERROR_DEVICE_UNAVAILABLE)")
        return self._device

    def _check_reach(self, name: str) -> None:
        """Check that the memory lies on this device or on a peer: other memory cannot be mapped here."""
        device, owner = self._ready(), name.split(".")[1:2]
        if owner and owner[0] not in (device.uuid, *device.peers):
            raise NotSupportedError(f"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: {device.uuid} cannot reach {owner[0]}")

    def _handle(self, fd: int) -> int:
        number = next(_numbers)
        self._files[number] = fd
        return number

    def _take(self, kind: str, nbytes: int) -> tuple[int, Path]:
        assert self._device is not None, "select() comes first"
        if kind == "raw":
            self._ready()
        self._not_lost()
        path = self._folder / f"memory.{self._device.uuid}.{kind}.{os.getpid()}.{next(_numbers)}"
        with self._locked():
            free = self._device.total_bytes - self._used(self._device.uuid)
            if nbytes > free:
                raise NoSpaceError(
                    f"the device has no memory left: {format_bytes(nbytes)} asked for, {format_bytes(free)} free"
                )
            fd = self._create(path)
            fcntl.flock(fd, fcntl.LOCK_SH)
            os.ftruncate(fd, nbytes)
        return fd, path

    @staticmethod
    def _create(path: Path) -> int:
        """Create a file of device memory. A context in a folder that cannot be written to is memory of its own."""
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _READ_ONLY or ".context." not in path.name:
                raise
            return os.memfd_create(path.name, os.MFD_CLOEXEC)

    def _used(self, uuid: str) -> int:
        """Return bytes of files that a process holds, and remove the other files, as the driver does.

        Under the lock.
        """
        used = 0
        for path in self._folder.glob(f"memory.{uuid}.*"):
            if _held(path):
                used += path.stat().st_size
            else:
                _remove(path)
        return used

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _error_of(function: str, status: str) -> TrimsError:
    """Return the error of a status, which is imported only then: an open's imports are counted."""
    from trims.memory.cuda.statuses import error_of

    return error_of(function, status)


def _held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _remove(path: Path) -> None:
    try:
        os.truncate(path, 0)
        path.unlink()
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise


def _open_again(fd: int) -> int:
    """Return a descriptor with a lock of its own: for reading, where this process may not write to the file."""
    path = f"/proc/self/fd/{fd}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _map(fd: int, nbytes: int, *, writable: bool) -> int:
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    flags = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = c_library().mmap(None, nbytes, prot, flags, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise CudaError(f"CUDA_ERROR_MAP_FAILED: {os.strerror(ctypes.get_errno())}")
    return int(address)


def _process_ids() -> int:
    """Return the ids of the processes that this one can see."""
    return os.stat("/proc/self/ns/pid").st_ino
