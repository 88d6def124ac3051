"""Copies of the disk image into shared memory, against the fastest plain way to read the same file there."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster
from trims_bench.scenarios.base import MEMORIES
from trims_bench.turns import take_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_bench.scenarios.base import Setup

TITLE = "disk image to the cpu tier, against a raw parallel read of the same file into the same kind of memory"
_BAR = Bar(">=", 0.85)
_CHUNK_BYTES = 8 << 20
_KEY = "b" * 64


def run(setup: Setup) -> Figure:
    """The tiers alone, from the page cache and from the device; then whole loads through a daemon."""
    nbytes = setup.size(1 << 30, 1 << 22)
    compared = []
    with setup.scratch() as folder:
        path = write_checkpoint(folder / "model.safetensors", nbytes)
        for where, large_pages in MEMORIES.items():
            compared += _compare(setup, path, where, large_pages)
    speeds = [f"{each.what} {nbytes / each.sides[0].median:.2f} GB/s" for each in compared]
    notes = [
        f"Speed of trims: {'; '.join(speeds)}.",
        "The raw read: as many threads, preadv into the mapped segment of equally new pages.",
    ]
    return Figure("disk", TITLE, compared, notes)


def _compare(setup: Setup, path: Path, where: str, large_pages: bool) -> list[Comparison]:
    capacity = 2 * path.stat().st_size
    with setup.daemon(path.parent / "state", cpu_capacity_bytes=capacity, large_pages=large_pages) as daemon:
        name = daemon.add({"name": "disk", "artifact": {"path": str(path)}})
        daemon.load(name)  # the first one also checks the image's digest
        given = {"image": daemon.location(name, "disk"), "large_pages": large_pages}
        loads, reads = [], []
        for _ in range(setup.repeats(9)):
            daemon.evict(name)
            began = time.perf_counter_ns()
            daemon.load(name)
            loads.append(time.perf_counter_ns() - began)
            reads.append(call(measure_raw, given))
        daemon.evict(name)
        cached, uncached = (
            call(measure_tiers, {**given, "cached": cached, "count": setup.repeats(9)}) for cached in (True, False)
        )
    bar = _BAR if large_pages else None
    return [
        faster(f"{where}tiers, page cache", *_sides(cached), bar),
        faster(f"{where}load through the daemon", Samples("trims", loads), Samples("raw read", reads), bar),
        faster(f"{where}tiers, from the device", *_sides(uncached), None),
    ]


def _sides(found: dict[str, list[int]]) -> tuple[Samples, Samples]:
    return Samples("trims", found["trims"]), Samples("raw read", found["raw"])


def measure_tiers(image: str, large_pages: bool, cached: bool, count: int) -> dict[str, list[int]]:
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
        return take_turns({"trims": over_tiers, "raw": lambda: _read_raw(fd, nbytes, large_pages)}, count, keep=clean)
    finally:
        tier.close()
        os.close(fd)


def measure_raw(image: str, large_pages: bool) -> int:
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
