"""Speed of bytes: every page of a large model read, and a disk image copied into shared memory."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.measuring import Bar, Figure, Samples, faster, measure
from trims_bench.scenarios import Part
from trims_bench.scenarios.base import MEMORIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

_ATTACH = "attach 1 GiB and touch every page, against safetensors from the page cache"
_DISK = "disk image to the cpu tier, against a raw parallel read of the same file into the same kind of memory"
_PAGE_FLOATS, _CHUNK_BYTES = 1024, 8 << 20
_KEY = "b" * 64


@contextmanager
def _resident(
    setup: Setup, folder: Path, name: str, tensors: int, *, large_pages: bool
) -> Iterator[tuple[Path, DaemonProcess]]:
    """A model of 1 GiB in a daemon's memory, of one kind of pages; yields its file, too."""
    path = write_checkpoint(folder / "model.safetensors", setup.size(1 << 30, 1 << 22), tensors=tensors)
    capacity = 2 * path.stat().st_size
    with setup.daemon(folder / "state", cpu_capacity_bytes=capacity, large_pages=large_pages) as daemon:
        daemon.load(daemon.add({"name": name, "artifact": {"path": str(path)}}))
        yield path, daemon


# -- every page of what is attached --------------------------------------------------------------------------------


def attach(setup: Setup) -> Figure:
    """Compare with `safetensors.torch.load_file`, which maps, and `safetensors.numpy.load_file`, which copies."""
    compared = []
    with setup.scratch() as folder:
        for where, large_pages in MEMORIES.items():
            with _resident(setup, folder, "attach", 64, large_pages=large_pages) as (path, daemon):
                given = {"runtime_dir": str(daemon.runtime_dir), "path": str(path), "count": setup.repeats(15)}
                ours, *rivals = (Samples(name, values) for name, values in call(touch, given).items())
            bar = Bar(">=", 1.0) if large_pages else None
            compared += [faster(f"{where}over {rival.of}", ours, rival, bar) for rival in rivals]
    return Figure(
        "attach", _ATTACH, compared, ["Each time is a new mapping: every page is faulted in again on both sides."]
    )


def touch(runtime_dir: str, path: str, count: int) -> dict[str, list[int]]:
    """Nanoseconds of each way, from nothing to every page read."""
    import numpy as np
    from safetensors.numpy import load_file as load_numpy
    from safetensors.torch import load_file as load_torch

    import trims

    def touched(arrays: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        total = sum(array.reshape(-1)[::_PAGE_FLOATS].sum(dtype=np.float64) for array in arrays.values())
        return float(total), arrays

    def over_trims() -> Any:
        with session.open("attach") as weights:  # the arrays keep the bytes
            return touched({name: weights[name] for name in weights})

    sums: set[float] = set()
    ways: dict[str, Callable[[], Any]] = {
        "trims": over_trims,
        "safetensors.torch": lambda: touched({name: each.numpy() for name, each in load_torch(path).items()}),
        "safetensors.numpy": lambda: touched(load_numpy(path)),
    }
    with trims.connect(runtime_dir) as session:
        found = measure(ways, count, keep=lambda _, result: sums.add(result[0]))
    assert len(sums) == 1, "all ways read the same numbers"
    return found


# -- an image into shared memory -----------------------------------------------------------------------------------


def disk(setup: Setup) -> Figure:
    """Measure the tiers alone, from the page cache and from the device; then whole loads through a daemon."""
    compared = []
    with setup.scratch() as folder:
        for where, large_pages in MEMORIES.items():
            with _resident(setup, folder, "disk", 16, large_pages=large_pages) as (path, daemon):
                nbytes, found = path.stat().st_size, _copies(setup, daemon, large_pages)
            for what, (ours, raw) in found.items():
                bar = Bar(">=", 0.85) if large_pages and "device" not in what else None
                compared.append(faster(f"{where}{what}", Samples("trims", ours), Samples("raw read", raw), bar))
    speeds = [f"{each.what} {nbytes / each.sides[0].median:.2f} GB/s" for each in compared]
    note = "The raw read: as many threads, preadv into the mapped segment of equally new pages."
    return Figure("disk", _DISK, compared, [f"Speed of trims: {'; '.join(speeds)}.", note])


def _copies(setup: Setup, daemon: DaemonProcess, large_pages: bool) -> dict[str, tuple[list[int], list[int]]]:
    given = {"image": daemon.location("disk", "disk"), "large_pages": large_pages}
    loads, reads = [], []
    for _ in range(setup.repeats(9)):
        daemon.evict("disk")
        began = time.perf_counter_ns()
        daemon.load("disk")
        loads.append(time.perf_counter_ns() - began)
        reads.append(call(read_once, given))
    daemon.evict("disk")
    cached, uncached = (
        call(copy_by_tiers, {**given, "cached": cached, "count": setup.repeats(9)}) for cached in (True, False)
    )
    return {
        "tiers, page cache": (cached["trims"], cached["raw"]),
        "load through the daemon": (loads, reads),
        "tiers, from the device": (uncached["trims"], uncached["raw"]),
    }


def copy_by_tiers(image: str, large_pages: bool, cached: bool, count: int) -> dict[str, list[int]]:
    """Nanoseconds from an image to a sealed segment, by the tiers and raw; pages are dropped before if not `cached`."""
    from trims.memory.shm import PosixShm
    from trims.tiers.cpu import CpuTier
    from trims.tiers.transfer import copy

    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    nbytes = os.fstat(fd).st_size
    tier = CpuTier(PosixShm(_prefix()), 4 * nbytes, large_pages=large_pages)

    def over_tiers() -> Callable[[], None]:
        draft = tier.create(_KEY, 1, nbytes, allocate=False)
        copy(fd, draft.fd, nbytes, pages=draft.pages)
        extent = tier.seal(draft, _KEY, _KEY)
        return lambda: tier.free(extent)

    def clean(_name: str, free: Callable[[], None]) -> None:
        free()
        if not cached:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    try:
        return measure({"trims": over_tiers, "raw": lambda: _read_raw(fd, nbytes, large_pages)}, count, keep=clean)
    finally:
        tier.close()
        os.close(fd)


def read_once(image: str, large_pages: bool) -> int:
    """Nanoseconds of one raw read."""
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        began = time.perf_counter_ns()
        free = _read_raw(fd, os.fstat(fd).st_size, large_pages)
        taken = time.perf_counter_ns() - began
    finally:
        os.close(fd)
    free()
    return taken


def _read_raw(fd: int, nbytes: int, large_pages: bool) -> Callable[[], None]:
    """Read a file into a new shared-memory segment through a mapping; returns what frees the segment."""
    from trims.memory.large_pages import LargePages
    from trims.memory.mapping import FileMapping
    from trims.memory.shm import PosixShm
    from trims.tiers.transfer import default_threads

    driver = PosixShm(_prefix())
    segment = driver.create("raw", nbytes)
    pages = LargePages(segment.fd, nbytes) if large_pages else None
    mapping = FileMapping(segment.fd, nbytes, write=True, align=True)

    def read(begin: int) -> None:
        end = min(begin + _CHUNK_BYTES, nbytes)
        room = pages.reserve(begin, end) if pages else None
        if room is not None:
            room.release()
        while begin < end:
            with mapping.view() as whole, whole[begin:end] as part:
                begin += os.preadv(fd, [part], begin)

    with ThreadPoolExecutor(default_threads()) as pool:
        list(pool.map(read, range(0, nbytes, _CHUNK_BYTES)))
    mapping.close()
    if pages is not None:
        pages.close()
    segment.close()
    return lambda: driver.remove(segment.name)


def _prefix() -> str:
    return f"trims-bench-{os.getpid()}"


PARTS = {"attach": Part(_ATTACH, attach), "disk": Part(_DISK, disk)}
