"""Experiment 8: from the host to the device by every way there is, against one pinned copy of the same bytes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import TrimsError
from trims.keeper.mover import CHUNK_BYTES, Mover
from trims.memory.mapping import FileMapping
from trims.memory.shm import SHM_FOLDER
from trims.testing.device_memory import CONTENT, Owner
from trims_bench.child import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_bench.gpu.rig import Rig

_REPEATS = 3
_LANES = 4


def host_to_device(rig: Rig) -> dict[str, Any]:
    """Bytes a second, by way: of shared memory, of a file past the page cache, and of memory that is pinned already."""
    nbytes = rig.sizes.copy_bytes // CHUNK_BYTES * CHUNK_BYTES or rig.sizes.copy_bytes
    with rig.scratch() as folder:
        given = {"kind": rig.kind, "driver": rig.drivers()[0], "nbytes": nbytes, "folder": str(folder)}
        found: dict[str, Any] = call(measure, given)
    return found


def measure(kind: str, driver: str, nbytes: int, folder: str) -> dict[str, Any]:
    """Measure copies in a process of its own, which has a context."""
    owner = Owner(kind, driver)
    allocation = owner.memory.allocate(nbytes)
    made = owner.memory.reach(allocation, writable=True)
    stack = contextlib.ExitStack()
    fd, named = stack.enter_context(_segment(nbytes))
    ways: dict[str, Any] = {}
    try:
        fill(fd, nbytes)
        mover = Mover(owner.cuda, owner.device)
        for way in mover.ways:  # registered: the first is with the registration, which is kept
            ways[way] = _rates(functools.partial(mover.copy_in, fd, nbytes, made.address, way=way), nbytes)
        mover.close()
        ways["unregistered"] = _tried(lambda: _unregistered(owner, fd, nbytes, made.address))
        ways["O_DIRECT into a pinned pool"] = _tried(lambda: _direct(owner, Path(folder, "file"), nbytes, made.address))
        ways["pinned copy"] = pinned_rates(owner, nbytes, made.address)
    finally:
        stack.close()
        owner.memory.close(made)
        owner.memory.free(allocation)
        owner.end()
    return {"nbytes": nbytes, "stays_registered": named, "bytes_per_s": ways}


@contextlib.contextmanager
def _segment(nbytes: int) -> Iterator[tuple[int, bool]]:
    """Shared memory with a name, as the daemon's segments have one; without one where the folder has no room."""
    path = SHM_FOLDER / f"trims-gpu-check.{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.posix_fallocate(fd, 0, nbytes)
            named = True
        except OSError:
            os.close(fd)
            fd, named = os.memfd_create("trims-gpu-check"), False
        yield fd, named
    finally:
        path.unlink()
        os.close(fd)


def pinned_rates(owner: Owner, nbytes: int, target: int) -> list[int]:
    """Return the rates of the link itself: one copy from pinned memory, queued and waited for."""
    pinned, stream = owner.cuda.host_allocate(nbytes), owner.cuda.stream()
    ctypes.memset(pinned, 1, nbytes)
    try:
        return _rates(lambda: _copy(owner, target, pinned, nbytes, stream), nbytes)
    finally:
        owner.cuda.end_stream(stream)
        owner.cuda.host_free(pinned)


def fill(fd: int, nbytes: int) -> None:
    """Real bytes, so that no page is the shared page of zeros."""
    os.ftruncate(fd, nbytes)
    block = (CONTENT * (CHUNK_BYTES // len(CONTENT)))[: min(CHUNK_BYTES, nbytes)]
    with mmap.mmap(fd, nbytes) as mapped:
        for begin in range(0, nbytes, len(block)):
            mapped[begin : begin + len(block)] = block[: nbytes - begin]


def _unregistered(owner: Owner, fd: int, nbytes: int, target: int) -> list[int]:
    """The mapping as it is: the driver stages it itself."""
    stream = owner.cuda.stream()
    mapping = FileMapping(fd, nbytes, align=True)
    try:
        return _rates(lambda: _copy(owner, target, mapping.address, nbytes, stream), nbytes)
    finally:
        mapping.close()
        owner.cuda.end_stream(stream)


def _direct(owner: Owner, path: Path, nbytes: int, target: int) -> list[int]:
    """A file on disk, read past the page cache into pinned buffers, several at once."""
    with path.open("wb+") as file:
        fill(file.fileno(), nbytes)
        os.fsync(file.fileno())
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with _lanes(owner) as lanes:
            return _rates(lambda: _read_in_lanes(owner, fd, nbytes, target, lanes), nbytes)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _lanes(owner: Owner) -> Iterator[list[tuple[int, int]]]:
    lanes = [(owner.cuda.stream(), owner.cuda.host_allocate(CHUNK_BYTES)) for _ in range(_LANES)]
    try:
        yield lanes
    finally:
        for stream, address in lanes:
            owner.cuda.host_free(address)
            owner.cuda.end_stream(stream)


def _read_in_lanes(owner: Owner, fd: int, nbytes: int, target: int, lanes: list[tuple[int, int]]) -> None:
    def work(number: int) -> None:
        owner.cuda.bind()
        stream, address = lanes[number]
        buffer = (ctypes.c_ubyte * CHUNK_BYTES).from_address(address)
        for begin in range(number * CHUNK_BYTES, nbytes, _LANES * CHUNK_BYTES):
            count = os.preadv(fd, [buffer], begin)
            owner.cuda.copy_in(target + begin, address, min(count, nbytes - begin), stream)
            owner.cuda.synchronize(stream)

    with ThreadPoolExecutor(_LANES) as pool:
        list(pool.map(work, range(_LANES)))


def _copy(owner: Owner, target: int, source: int, nbytes: int, stream: int) -> None:
    owner.cuda.copy_in(target, source, nbytes, stream)
    owner.cuda.synchronize(stream)


def _rates(copy: Callable[[], object], nbytes: int) -> list[int]:
    """Bytes a second of each repeat; the first, which the driver and the pages are cold for, included."""
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        copy()
        taken.append(round(nbytes / (time.perf_counter() - began)))
    return taken


def _tried(ask: Callable[[], list[int]]) -> Any:
    try:
        return ask()
    except (OSError, TrimsError) as error:
        return {"unavailable": f"{type(error).__name__}: {error}"}
