"""Experiments on sharing device memory between processes, below the store: what the driver does, not what it says.

Each returns a plain dictionary; what one way of sharing cannot do here is said under its name.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from trims.core.errors import TrimsError
from trims.memory.cuda.drivers import Export
from trims.testing.device_memory import CONTENT, Owner
from trims_bench.child import ChildError, call
from trims_bench.gpu.frameworks import torch_writes
from trims_bench.gpu.rig import UnavailableError, ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.memory.cuda.drivers import Allocation
    from trims.testing.device_borrower import Borrower
    from trims_bench.gpu.rig import Rig

_MIB = 1 << 20
_REPEATS = 5
_POOLED_BYTES = 64 << 10


def interior_pointer(rig: Rig) -> dict[str, Any]:
    """Return whether the handle of a pointer inside an allocation opens at its beginning, and so shows all of it.

    A raw allocation of our own, and two neighbours in the pools of PyTorch and cupy.
    """
    if not rig.device.ipc:
        raise UnavailableError(f"{rig.device.name} has no CUDA IPC")
    found: dict[str, Any] = {"raw": call(measure_interior, {"kind": rig.kind})}
    for library in ("torch", "cupy"):
        try:
            if library == "torch":
                rig.require_torch()
            elif rig.kind != "driver":
                raise UnavailableError("cupy needs a real device")
            elif importlib.util.find_spec("cupy") is None:
                raise UnavailableError("cupy is not installed")
            found[library] = call(measure_neighbours, {"kind": rig.kind, "library": library})
        except (ChildError, UnavailableError) as error:
            found[library] = {"unavailable": str(error)}
    return found


def measure_interior(kind: str) -> dict[str, Any]:
    """Export an allocation's beginning and a pointer 3 MiB inside, in a process of its own, and open both elsewhere."""
    owner = Owner(kind, "ipc")
    made = owner.sealed(b"\0" * _MIB, nbytes=4 * _MIB)
    inside = owner.sealed(b"\3" * 16, nbytes=16)
    stream = owner.cuda.stream()
    owner.cuda.copy_device(made.address + 3 * _MIB, inside.address, 16, stream)
    owner.cuda.synchronize(stream)
    try:
        handles = [owner.cuda.ipc_export(made.address + offset) for offset in (0, 3 * _MIB)]
        seen = [_bytes_at(owner, made, handle, (0, 3 * _MIB)) for handle in handles]
        return {
            "handles_equal": handles[0] == handles[1],
            "opens_at_the_beginning": seen[0] == seen[1] == [0, 3],
            "bytes_at_0_and_3_MiB": seen,
        }
    except TrimsError as error:
        return {"refused": str(error)}
    finally:
        owner.cuda.end_stream(stream)
        owner.memory.free(inside)
        owner.memory.free(made)
        owner.end()


def _bytes_at(owner: Owner, made: Allocation, handle: bytes, offsets: Sequence[int]) -> list[int]:
    """Return the bytes that another process reads at these offsets from where the handle opens."""
    with owner.borrower() as borrower:
        borrower.open(Export("ipc", owner.device.uuid, made.size_bytes, handle, cuda=owner.kind))
        found = [borrower.read(offset, 1)[0] for offset in offsets]
        borrower.close()
    return found


def measure_neighbours(kind: str, library: str) -> dict[str, Any]:
    """Report whether the second of two tensors of one pool shows the first one's bytes, in a process of its own."""
    from trims.memory.cuda.connect import connect
    from trims.testing.device_borrower import Borrower

    first, second, keep = _pooled(library)
    cuda = connect(kind)
    device = cuda.use(cuda.devices()[0].uuid)
    try:
        handles = [cuda.ipc_export(address) for address in (first, second)]
    except TrimsError as error:
        return {"refused": str(error), "distance_bytes": second - first}
    with Borrower(kind, device.uuid, "ipc") as borrower:
        borrower.open(Export("ipc", device.uuid, 2 * _POOLED_BYTES, handles[1], cuda=kind))
        begins_with = borrower.read(0, 1)[0]
        borrower.close()
    del keep
    return {
        "handles_equal": handles[0] == handles[1],
        "distance_bytes": second - first,
        "the_second_opens_on_the_first": begins_with == 1,
    }


def _pooled(library: str) -> tuple[int, int, Any]:
    """Addresses of two allocations, filled with 1 and 2, and what keeps them."""
    if library == "torch":
        import torch

        made = [torch.full((_POOLED_BYTES,), number, dtype=torch.uint8, device="cuda") for number in (1, 2)]
        torch.cuda.synchronize()
        return made[0].data_ptr(), made[1].data_ptr(), made
    import cupy

    arrays = [cupy.full(_POOLED_BYTES, number, dtype=cupy.uint8) for number in (1, 2)]
    cupy.cuda.runtime.deviceSynchronize()
    return arrays[0].data.ptr, arrays[1].data.ptr, arrays


def exporter_killed(rig: Rig) -> dict[str, Any]:
    """SIGKILL of the exporter while an importer reads: what the importer reads then, and who is charged."""
    return _each(rig, lambda driver: _kill_exporter(rig, driver))


def _kill_exporter(rig: Rig, driver: str) -> dict[str, Any]:
    nbytes = min(64 * _MIB, rig.sizes.most_bytes)
    with rig.borrower(driver) as borrower:
        borrower.context_ns()
        before = rig.free_bytes()  # with the importer's context, which is not what is asked about
        found = _read_through_its_death(rig, driver, nbytes, borrower)
        found["charged_bytes"] = before - rig.free_bytes()
        borrower.kill()
        found["given_back_with_the_importer_bytes"] = rig.free_bytes() - before
    return {**found, "nbytes": nbytes}


def _read_through_its_death(rig: Rig, driver: str, nbytes: int, borrower: Borrower) -> dict[str, Any]:
    with rig.exporter(driver, nbytes) as exporter:
        borrower.open(exporter.export())
        assert borrower.read(0, 16) == CONTENT[:16]
        late = exporter.export()
        exporter.kill()
        found: dict[str, Any] = {"importer_reads_on": _tried(lambda: borrower.read(16, 16) == CONTENT[16:32])}
        with rig.borrower(driver) as other:
            found["opens_after_its_death"] = _tried(lambda: other.open(late) > 0)
    return found


def open_cost(rig: Rig) -> dict[str, Any]:
    """Nanoseconds to open an allocation in another process, by size: the first time, and again after closing.

    The process has its context before; the time for that is reported beside.
    """

    def measure(driver: str) -> dict[str, Any]:
        by_size: dict[str, Any] = {}
        for size in rig.allocations():
            with rig.exporter(driver, size) as exporter, rig.borrower(driver) as borrower:
                taken = []
                for _ in range(_REPEATS):
                    taken.append(borrower.open(exporter.export()))
                    borrower.close()
                by_size[str(size)] = {"first_ns": taken[0], "again_ns": taken[1:], "context_ns": borrower.context_ns()}
        return by_size

    return _each(rig, measure)


def write_to_read_only(rig: Rig) -> dict[str, Any]:
    """Report what a write does to the borrower, to another one, and to the owner: by a copy engine, and by a kernel."""
    writes: dict[str, Callable[[Borrower], None]] = {
        "copy": lambda offender: offender.write(0, b"\xff" * 16),
        "kernel": lambda offender: offender.fill(0, 0xFF, 16),
    }
    found = _each(rig, lambda driver: {way: _write(rig, driver, write) for way, write in writes.items()})
    try:
        found["torch add_"] = torch_writes(rig)
    except UnavailableError as error:
        found["torch add_"] = {"unavailable": str(error)}
    return found


def _write(rig: Rig, driver: str, write: Callable[[Borrower], None]) -> dict[str, Any]:
    with rig.exporter(driver) as exporter, rig.borrower(driver) as offender, rig.borrower(driver) as other:
        offender.open(exporter.export())
        other.open(exporter.export())
        try:
            write(offender)
            outcome = "it was not stopped"
        except TrimsError as error:
            outcome = str(error)
        found = {
            "offender": outcome,
            "offender_reads_on": _tried(lambda: bool(offender.read(16, 16))),
            "other_reads": _tried(lambda: other.read(0, 16) == CONTENT[:16]),
            "owner_intact": _tried(exporter.intact),
        }
        offender.kill()
        return found


def parked_descriptor(rig: Rig) -> dict[str, Any]:
    """Return whether a descriptor in a third process, this one, keeps memory alive after its exporter has exited."""
    if not rig.device.vmm:
        raise UnavailableError(f"{rig.device.name} cannot share memory as descriptors")
    before = rig.free_bytes()
    with rig.exporter("vmm", 4 * _MIB) as exporter:
        parked = exporter.export()
    charged = before - rig.free_bytes()
    with rig.borrower("vmm") as borrower:
        borrower.open(parked)
        intact = borrower.read(0, 256) == CONTENT[:256]
        borrower.close()
    return {"bytes_intact": intact, "charged_while_parked_bytes": charged, "nbytes": 4 * _MIB,
            "charged_after_bytes": before - rig.free_bytes()}  # fmt: skip


def pid_namespaces(rig: Rig) -> dict[str, Any]:
    """Return whether a borrower with process ids of its own can open it."""
    own = ("--user", "--map-root-user") if os.geteuid() else ()
    words = (*own, "--pid", "--fork", "--kill-child")
    if why := ended("unshare", [*words, "true"]):
        raise UnavailableError(f"no process ids of one's own here: {why}")

    def measure(driver: str) -> dict[str, Any]:
        with rig.exporter(driver) as exporter, rig.borrower(driver, ("unshare", *words)) as stranger:
            try:
                stranger.open(exporter.export())
            except TrimsError as error:
                return {"opens": False, "said": str(error)}
            return {"opens": True, "reads": _tried(lambda: stranger.read(0, 16) == CONTENT[:16])}

    return _each(rig, measure)


def _each(rig: Rig, measure: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
    """Measure each way of sharing; one that this device has not, or that fails, says so and leaves the other."""
    found: dict[str, Any] = {}
    for driver in ("vmm", "ipc"):
        if driver not in rig.drivers():
            found[driver] = {"unavailable": f"{rig.device.name} cannot share memory by {driver}"}
            continue
        try:
            found[driver] = measure(driver)
        except TrimsError as error:
            found[driver] = {"error": f"{type(error).__name__}: {error}"}
    return found


def _tried(ask: Callable[[], bool]) -> bool | str:
    try:
        return ask()
    except TrimsError as error:
        return str(error)
