"""Moving an image between a file and device memory, or between devices, as fast as the machine lets one.

Two ways in, chosen by measurement: *staged*, where threads read chunks into pinned buffers, around the page cache
where that is faster, and queue their copies, so that reading the next chunk overlaps the copy of the last; and
*registered*, where the file's own pages are pinned and copied from. Registering costs time for each page, staging a
second copy through memory: which is less depends on the size of the pages and on the processor, so the first large
images are moved both ways.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import mmap
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import blake3

from trims.core.errors import DeviceLostError, ImageError, TrimsError
from trims.core.units import align_up
from trims.memory.mapping import FileMapping
from trims.memory.reading import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.memory.cuda.api import Cuda, Device

log = logging.getLogger(__name__)
CHUNK_BYTES = 8 << 20
#: Smaller images say nothing about speed.
_TELLING_BYTES = 64 << 20
_MOST_LANES = 8
_STILL_THERE_S = 5.0
#: Large enough that waiting for each costs nothing, small enough to tell how far it is.
_ACROSS_BYTES = 256 << 20


class _Lane:
    """A pinned buffer with a stream of its own, used by one thread."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.stream = cuda.stream()
        self.address = cuda.host_allocate(CHUNK_BYTES)
        self.buffer = memoryview((ctypes.c_ubyte * CHUNK_BYTES).from_address(self.address)).cast("B")

    def end(self) -> None:
        self.buffer.release()
        self._cuda.host_free(self.address)
        self._cuda.end_stream(self.stream)


class Mover:
    """Copies for one device. Lanes are made at the first copy and given back by `close`.

    Args:
        cuda: On its device.
        device: Which says whether registration is possible.
        lanes: Chunks in flight at once; None for what the processors allow.
    """

    def __init__(self, cuda: Cuda, device: Device, lanes: int | None = None) -> None:
        self._cuda = cuda
        self._can_register = device.read_only_registration
        self._lanes: list[_Lane] = []
        self._wanted_lanes = lanes or max(2, min(_MOST_LANES, len(os.sched_getaffinity(0))))
        self._using = threading.Lock()
        #: Counts what was moved, so that who waits for his turn knows whether the one before him goes on.
        self._steps = 0
        #: Seconds a byte by each way, from the first telling image on.
        self.pace_s: dict[str, float] = {}

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways in that this device has."""
        return ("staged", "registered") if self._can_register else ("staged",)

    def copy_in(
        self,
        fd: int,
        nbytes: int,
        target: int,
        on_progress: Callable[[int], None] | None = None,
        *,
        way: str | None = None,
    ) -> None:
        """File to device; when it returns, the device has every byte.

        Args:
            fd: Read from its beginning.
            nbytes: How much.
            target: Address on the device.
            on_progress: Called with the bytes done so far, from threads of this copy, one at a time.
            way: One of `ways`; None for the faster one, as measured so far.

        Raises:
            ImageError: The file is shorter than `nbytes`.
            TrimsError: What the driver said.
        """
        with self._turn(on_progress):
            way = way or self._way(nbytes)
            began = time.perf_counter()
            if way == "registered":
                way = self._registered(fd, nbytes, target, on_progress)
            else:
                self._staged(fd, nbytes, target, on_progress)
            if nbytes >= _TELLING_BYTES:
                self.pace_s[way] = (time.perf_counter() - began) / nbytes

    def copy_out(self, source: int, nbytes: int, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Device to file, which is at least as long."""

        def move(lane: _Lane, begin: int, end: int) -> None:
            self._fetch(lane, source + begin, end - begin)
            done = 0
            while done < end - begin:
                with lane.buffer[done : end - begin] as part:
                    done += os.pwrite(fd, part, begin + done)

        with self._turn(on_progress):
            self._in_chunks(nbytes, move, on_progress)

    def copy_across(
        self, source: int, nbytes: int, target: int, on_progress: Callable[[int], None] | None = None
    ) -> None:
        """From memory of another device that is mapped here; when it returns, this device has every byte."""
        with self._turn(on_progress):
            stream = self._ready_lanes()[0].stream
            for begin in range(0, nbytes, _ACROSS_BYTES):
                count = min(_ACROSS_BYTES, nbytes - begin)
                self._cuda.copy_device(target + begin, source + begin, count, stream)
                self._cuda.synchronize(stream)
                self._steps += 1
                if on_progress is not None:
                    on_progress(begin + count)

    def digest(self, source: int, nbytes: int) -> str:
        """blake3 of device memory, hex."""
        hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        with self._using:
            lane = self._ready_lanes()[0]
            for begin in range(0, nbytes, CHUNK_BYTES):
                count = min(CHUNK_BYTES, nbytes - begin)
                self._fetch(lane, source + begin, count)
                self._steps += 1
                with lane.buffer[:count] as part:
                    hasher.update(part)
        return hasher.hexdigest()

    def close(self) -> None:
        """Give buffers and streams back. The next copy makes new ones."""
        with self._using:
            lanes, self._lanes = self._lanes, []
            for lane in lanes:
                lane.end()

    # -- the two ways in -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self, on_progress: Callable[[int], None] | None) -> Iterator[None]:
        """One copy at a time. Who waits says so as long as the one before him goes on, or he would seem to hang."""
        seen = self._steps
        while not self._using.acquire(timeout=_STILL_THERE_S):
            if on_progress is not None and self._steps != seen:
                seen = self._steps
                on_progress(0)
        try:
            yield
        finally:
            self._using.release()

    def _way(self, nbytes: int) -> str:
        if not self._can_register or nbytes < _TELLING_BYTES:
            return "staged"
        untried = [way for way in self.ways if way not in self.pace_s]
        return untried[0] if untried else min(self.pace_s, key=self.pace_s.__getitem__)

    def _staged(self, fd: int, nbytes: int, target: int, on_progress: Callable[[int], None] | None) -> None:
        with contextlib.closing(Source.open(fd, nbytes, CHUNK_BYTES)) as source:

            def move(lane: _Lane, begin: int, end: int) -> None:
                self._cuda.synchronize(lane.stream)  # the buffer's last copy
                direct = end - begin == CHUNK_BYTES and source.use_direct(begin // CHUNK_BYTES)
                began = time.perf_counter()
                with lane.buffer[: end - begin] as part:
                    source.read(part, begin, direct=direct)
                source.record(direct, time.perf_counter() - began)
                self._cuda.copy_in(target + begin, lane.address, end - begin, lane.stream)

            self._in_chunks(nbytes, move, on_progress)

    def _registered(self, fd: int, nbytes: int, target: int, on_progress: Callable[[int], None] | None) -> str:
        """Returns the way it went: what cannot be registered is staged, from then on."""
        if os.fstat(fd).st_size < nbytes:
            raise ImageError(f"the source has {os.fstat(fd).st_size} bytes, {nbytes} were expected: truncated?")
        mapping = FileMapping(fd, nbytes, align=True)
        try:
            address, length = mapping.address, align_up(nbytes, mmap.PAGESIZE)
            try:
                self._cuda.host_register(address, length)
            except DeviceLostError:
                raise
            except TrimsError as error:  # drivers say it in many ways: of a file's pages, or too many to pin
                log.warning("no more images are registered, all are staged: %s", error)
                self._can_register = False
                self._staged(fd, nbytes, target, on_progress)
                return "staged"
            try:
                self._in_chunks(
                    nbytes,
                    lambda lane, begin, end: self._cuda.copy_in(
                        target + begin, address + begin, end - begin, lane.stream
                    ),
                    on_progress,
                )
            finally:
                self._cuda.host_unregister(address)
        finally:
            mapping.close()
        return "registered"

    def _fetch(self, lane: _Lane, source: int, nbytes: int) -> None:
        self._cuda.copy_out(lane.address, source, nbytes, lane.stream)
        self._cuda.synchronize(lane.stream)

    # -- lanes -----------------------------------------------------------------------------------------------------

    def _in_chunks(
        self, nbytes: int, move: Callable[[_Lane, int, int], None], on_progress: Callable[[int], None] | None
    ) -> None:
        """Give chunks to lanes as these come free; all copies are done when this returns, also if one failed."""
        lanes = self._ready_lanes()
        begins = itertools.count(0, CHUNK_BYTES)  # next() of a count is atomic
        done, lock, failed = [0], threading.Lock(), threading.Event()

        def work(lane: _Lane) -> None:
            self._cuda.bind()
            with self._synchronized(lane):
                for begin in iter(begins.__next__, None):
                    if begin >= nbytes or failed.is_set():
                        return
                    end = min(begin + CHUNK_BYTES, nbytes)
                    try:
                        move(lane, begin, end)
                    except BaseException:
                        failed.set()
                        raise
                    with lock:
                        done[0] += end - begin
                        self._steps += 1
                        if on_progress is not None:
                            on_progress(done[0])

        with ThreadPoolExecutor(len(lanes), thread_name_prefix="trims-lane") as pool:
            for finished in [pool.submit(work, lane) for lane in lanes]:
                finished.result()

    @contextlib.contextmanager
    def _synchronized(self, lane: _Lane) -> Iterator[None]:
        """What the block queued is done after it, whatever happened: nobody may free what a copy still touches."""
        try:
            yield
        finally:
            self._cuda.synchronize(lane.stream)

    def _ready_lanes(self) -> list[_Lane]:
        while len(self._lanes) < self._wanted_lanes:
            self._lanes.append(_Lane(self._cuda))
        return self._lanes
