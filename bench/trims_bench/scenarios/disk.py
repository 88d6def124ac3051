"""From the disk image into shared memory, against the fastest plain way to read the same file there."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster
from trims_bench.turns import take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_bench.scenarios.base import Setup

TITLE = "disk image to the cpu tier, against a raw parallel read of the same file into the same kind of memory"
_BAR = Bar(">=", 0.85)
_CHUNK_BYTES = 8 << 20
_KEY = "b" * 64


def run(setup: Setup) -> Figure:
    """The tiers alone, from the page cache and from the device; then whole loads through a daemon."""
    nbytes = setup.size(1 << 30, 1 << 22)
    with setup.scratch() as folder, setup.daemon(folder / "state", cpu_capacity_bytes=2 * nbytes) as daemon:
        path = write_checkpoint(folder / "model.safetensors", nbytes)
        name = daemon.add({"name": "disk", "artifact": {"path": str(path)}})
        daemon.load(name)
        image = daemon.location(name, "disk")
        tiers = {
            where: call(measure_tiers, {"image": image, "cached": where == "cached", "count": setup.repeats(9)})
            for where in ("cached", "uncached")
        }
        loads, reads = [], []
        for _ in range(setup.repeats(9)):
            daemon.evict(name)
            began = time.perf_counter_ns()
            daemon.load(name)
            loads.append(time.perf_counter_ns() - began)
            reads += call(measure_raw, {"image": image})
    through = faster("a load through the daemon", Samples("trims load", loads), Samples("raw read", reads), _BAR)
    compared = [_tiers("tiers, page cache warm", tiers["cached"], _BAR), through]
    compared.append(_tiers("tiers, from the device", tiers["uncached"], None))
    speed = ", ".join(f"{each.what} {nbytes / each.sides[0].median:.2f} GB/s" for each in compared)
    return Figure(
        "disk", TITLE, compared, [f"{speed}.", "The raw read: as many threads, preadv into the mapped segment."]
    )


def _tiers(what: str, found: dict[str, list[int]], bar: Bar | None) -> Comparison:
    return faster(what, Samples("trims tiers", found["trims"]), Samples("raw read", found["raw"]), bar)


def measure_tiers(image: str, cached: bool, count: int) -> dict[str, list[int]]:
    """Nanoseconds from an image to a sealed segment, by the tiers and raw; pages are dropped before if not `cached`."""
    from trims.tiers.cpu import CpuTier
    from trims.tiers.transfer import copy

    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    nbytes = os.fstat(fd).st_size
    tier = CpuTier(_prefix(), 4 * nbytes)

    def over_tiers() -> Callable[[], None]:
        draft = tier.create(_KEY, 1, nbytes, allocate=False)
        copy(fd, draft.fd, nbytes)
        extent = tier.seal(draft, _KEY, _KEY)
        return lambda: tier.free(extent)

    def clean(_name: str, free: Callable[[], None]) -> None:
        free()
        if not cached:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    try:
        return take_turns({"trims": over_tiers, "raw": lambda: _read_raw(fd, nbytes)}, count, keep=clean)
    finally:
        tier.close()
        os.close(fd)


def measure_raw(image: str) -> list[int]:
    """Nanoseconds of one raw read."""
    fd = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        began = time.perf_counter_ns()
        free = _read_raw(fd, os.fstat(fd).st_size)
        taken = time.perf_counter_ns() - began
    finally:
        os.close(fd)
    free()
    return [taken]


def _read_raw(fd: int, nbytes: int) -> Callable[[], None]:
    """Read a file into a new shared-memory segment through a mapping; returns what frees the segment."""
    from trims.memory import shm
    from trims.tiers.transfer import default_threads

    segment = shm.create(_prefix(), "raw", nbytes)
    with mmap.mmap(segment.fd, nbytes) as mapped, memoryview(mapped) as view:

        def read(begin: int) -> None:
            end = min(begin + _CHUNK_BYTES, nbytes)
            while begin < end:
                with view[begin:end] as part:
                    begin += os.preadv(fd, [part], begin)

        with ThreadPoolExecutor(default_threads()) as pool:
            list(pool.map(read, range(0, nbytes, _CHUNK_BYTES)))
    segment.close()
    return lambda: shm.unlink(segment.name)


def _prefix() -> str:
    return f"trims-bench-{os.getpid()}"
