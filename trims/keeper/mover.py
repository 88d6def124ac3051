"""Moving an image between a file and device memory, or between devices, as fast as the machine can.

There are two ways in:

- *staged*: threads read chunks into pinned buffers, around the page cache where that is faster, and queue the copies to
  the device. Each thread has two buffers, so reading a chunk overlaps the copy of the one before.
- *registered*: the file's own pages are pinned, and the device copies from them. For shared memory only: unpinning
  marks pages dirty, so that the kernel would write an unchanged disk image back. A segment stays registered for later
  copies (`trims.keeper.pinned_segments`).

Registering costs time for each page, staging costs a second copy in memory. Which is faster depends on page size and
processor. So the first large images are moved each way, and later ones the way that was measured to be faster
(`trims.keeper.pace`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import blake3

from trims.core.errors import DeviceLostError, ImageError, TrimsError
from trims.keeper.device_sums import DeviceSums
from trims.keeper.pace import WayCosts, in_shared_memory
from trims.keeper.pinned_segments import PinnedSegments
from trims.memory.reading import Source, read_all
from trims.memory.row_sums import Sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.memory.cuda.api import Cuda, Device

log = logging.getLogger(__name__)
CHUNK_BYTES = 4 << 20
#: Way of a sum that the host computed over copied bytes.
BY_HOST = "host"
#: Threads that read into pinned buffers. One copies some 5 to 10 GB/s, a device takes up to 55.
_MOST_LANES = 12
#: Bytes that one system call reads, a quarter of a millisecond: threads that make many short calls wait for their turns
#: in the interpreter.
_CALL_BYTES = 2 << 20
#: Piece of a copy between devices: large enough that waiting for each costs little, small enough to report progress.
_ACROSS_BYTES = 256 << 20


class _Lane:
    """Two pinned buffers of one thread, used in turns."""

    def __init__(self, cuda: Cuda) -> None:
        self._buffers = [_Buffer(cuda)]
        try:
            self._buffers.append(_Buffer(cuda))
        except BaseException:
            self.end()
            raise
        self._uses = itertools.count()

    def next(self) -> _Buffer:
        """Return the buffer that was not used last."""
        return self._buffers[next(self._uses) % 2]

    def synchronize(self) -> None:
        for buffer in self._buffers:
            buffer.synchronize()

    def end(self) -> None:
        for buffer in self._buffers:
            buffer.end()


class _Buffer:
    """Pinned memory for one chunk, with a stream of its own."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.stream = cuda.stream()
        self.address = cuda.host_allocate(CHUNK_BYTES)
        self.memory = memoryview((ctypes.c_ubyte * CHUNK_BYTES).from_address(self.address)).cast("B")

    def synchronize(self) -> None:
        self._cuda.synchronize(self.stream)

    def end(self) -> None:
        self.memory.release()
        self._cuda.host_free(self.address)
        self._cuda.end_stream(self.stream)


class _UnregisteredError(Exception):
    """The driver does not register a file's pages."""


class Mover:
    """Copies for one device, one at a time. Lanes are made at the first copy and given back by `close`.

    Args:
        cuda: The driver; its current context is on the device.
        device: Says whether file pages can be registered.
        lanes: Threads that copy at once; None for one for each processor, from 2 to 12.
    """

    def __init__(self, cuda: Cuda, device: Device, lanes: int | None = None) -> None:
        self._cuda = cuda
        self._can_register = device.read_only_registration
        self._lanes: list[_Lane] = []
        self._wanted_lanes = lanes or max(2, min(_MOST_LANES, len(os.sched_getaffinity(0))))
        self._segments = PinnedSegments(cuda)
        self._sums = DeviceSums(cuda)
        self.costs = WayCosts()

    @property
    def ways(self) -> tuple[str, ...]:
        """Return the ways in that this device supports, for images in shared memory."""
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
        """Copy a file to the device. When this returns, the device has every byte.

        Args:
            fd: The file, read from its beginning.
            target: Device address.
            on_progress: Called with the bytes done so far, from threads of this copy, one at a time.
            way: One of `ways`; None for the faster one, as measured so far.

        Raises:
            ImageError: The file is shorter than `nbytes`.
            TrimsError: The driver reported an error.
        """
        shared = in_shared_memory(fd)
        if way is None and shared and self._segments.has(fd, nbytes):
            self._copy_registered(fd, nbytes, target, on_progress)  # at the speed of the link, whatever was measured
            return
        way = way or self.costs.choose(self.ways if shared else ("staged",), nbytes, shared=shared)
        self._ready_lanes(nbytes)  # making them costs more than moving a small image, and must not be measured with it
        began = time.perf_counter()
        if way == "registered":
            way = self._registered(fd, nbytes, target, on_progress)
        else:
            self._staged(fd, nbytes, target, on_progress)
        self.costs.record(way, nbytes, time.perf_counter() - began, shared=shared)

    def copy_out(self, source: int, nbytes: int, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Copy device memory to a file, which must be at least as long."""

        def move(lane: _Lane, begin: int, end: int) -> None:
            buffer = lane.next()
            self._fetch(buffer, source + begin, end - begin)
            done = 0
            while done < end - begin:
                with buffer.memory[done : end - begin] as part:
                    done += os.pwrite(fd, part, begin + done)

        self._in_chunks(nbytes, move, on_progress)

    def copy_across(
        self, source: int, nbytes: int, target: int, on_progress: Callable[[int], None] | None = None
    ) -> None:
        """Copy from another device's memory that is mapped here. When this returns, this device has every byte."""
        stream = self._ready_lanes(1)[0].next().stream
        for begin in range(0, nbytes, _ACROSS_BYTES):
            count = min(_ACROSS_BYTES, nbytes - begin)
            self._cuda.copy_device(target + begin, source + begin, count, stream)
            self._cuda.synchronize(stream)
            if on_progress is not None:
                on_progress(begin + count)

    def digest(self, source: int, nbytes: int, on_progress: Callable[[int], None] | None = None) -> str:
        """Return blake3 of device memory, in hex."""
        hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        self._feed(hasher.update, source, nbytes, on_progress)
        return hasher.hexdigest()

    def sum(
        self, source: int, nbytes: int, expected: int, on_progress: Callable[[int], None] | None = None
    ) -> tuple[str, int]:
        """Return the way and the sum of an image's checksum, computed by the device over its memory.

        Where that is not the expected sum, return the host's instead, of the same bytes: a kernel that goes wrong must
        not make an image look broken. Raises NotSupportedError if the device computes none.
        """
        found, way = self._sums.sum(source, nbytes, on_progress)
        if found == expected:
            return way, found
        total = Sum()
        self._feed(total.update, source, nbytes, on_progress)
        if total.parts != found:
            self._sums.distrust(way)
        return BY_HOST, total.parts

    def sum_file(self, fd: int, nbytes: int, on_progress: Callable[[int], None] | None = None) -> int:
        """Return the sum of a file's bytes. Raises ImageError if there are fewer."""
        total = Sum()
        room = memoryview(bytearray(min(CHUNK_BYTES, nbytes)))
        for begin in range(0, nbytes, CHUNK_BYTES):
            with room[: min(CHUNK_BYTES, nbytes - begin)] as piece:
                read_all(fd, piece, begin)
                total.update(piece)
            if on_progress is not None:
                on_progress(begin)
        return total.parts

    def _feed(
        self,
        update: Callable[[memoryview], object],
        source: int,
        nbytes: int,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        """Pass device memory to a function, in order, one chunk after the other."""
        buffer = self._ready_lanes(1)[0].next()
        for begin in range(0, nbytes, CHUNK_BYTES):
            count = min(CHUNK_BYTES, nbytes - begin)
            self._fetch(buffer, source + begin, count)
            with buffer.memory[:count] as part:
                update(part)
            if on_progress is not None:
                on_progress(begin + count)

    def close(self) -> None:
        """Give registrations, buffers and streams back. The next copy makes new ones."""
        self._segments.close()
        self._sums.close()
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.end()

    # -- the two ways in -------------------------------------------------------------------------------------------

    def _staged(self, fd: int, nbytes: int, target: int, on_progress: Callable[[int], None] | None) -> None:
        with contextlib.closing(Source.open(fd, nbytes, CHUNK_BYTES, _CALL_BYTES)) as source:

            def move(lane: _Lane, begin: int, end: int) -> None:
                buffer = lane.next()
                buffer.synchronize()  # the last copy out of it must be done
                direct = end - begin == CHUNK_BYTES and source.use_direct(begin // CHUNK_BYTES)
                began = time.perf_counter()
                with buffer.memory[: end - begin] as part:
                    source.read(part, begin, direct=direct)
                source.record(direct, time.perf_counter() - began)
                self._cuda.copy_in(target + begin, buffer.address, end - begin, buffer.stream)

            self._in_chunks(nbytes, move, on_progress)

    def _registered(self, fd: int, nbytes: int, target: int, on_progress: Callable[[int], None] | None) -> str:
        """Copy by registering; returns the way used. If registering fails, this and later images are staged."""
        if os.fstat(fd).st_size < nbytes:
            raise ImageError(f"the source has {os.fstat(fd).st_size} bytes, {nbytes} were expected: truncated?")
        try:
            self._copy_registered(fd, nbytes, target, on_progress)
        except _UnregisteredError as error:  # drivers have many codes for it: not for file pages, or too many pages
            log.warning("the pages of files cannot be registered; images are staged from now on: %s", error)
            self._can_register = False
            self._staged(fd, nbytes, target, on_progress)
            return "staged"
        return "registered"

    def _copy_registered(self, fd: int, nbytes: int, target: int, on_progress: Callable[[int], None] | None) -> None:
        with contextlib.ExitStack() as stack:
            try:
                address = stack.enter_context(self._segments.address(fd, nbytes))
            except DeviceLostError:
                raise
            except TrimsError as error:
                raise _UnregisteredError(error) from error
            self._in_chunks(
                nbytes,
                lambda lane, begin, end: self._cuda.copy_in(
                    target + begin, address + begin, end - begin, lane.next().stream
                ),
                on_progress,
            )

    def tidy(self) -> None:
        """Give up what is kept for segments that are gone; the context is current. Call this now and then."""
        self._segments.tidy()

    def _fetch(self, buffer: _Buffer, source: int, nbytes: int) -> None:
        self._cuda.copy_out(buffer.address, source, nbytes, buffer.stream)
        buffer.synchronize()

    # -- lanes -----------------------------------------------------------------------------------------------------

    def _in_chunks(
        self, nbytes: int, move: Callable[[_Lane, int, int], None], on_progress: Callable[[int], None] | None
    ) -> None:
        """Give chunks to lanes as lanes become free. All copies are done when this returns, also if one failed."""
        lanes = self._ready_lanes(nbytes)
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
                        if on_progress is not None:
                            on_progress(done[0])

        with ThreadPoolExecutor(len(lanes), thread_name_prefix="trims-lane") as pool:
            for finished in [pool.submit(work, lane) for lane in lanes]:
                finished.result()

    @contextlib.contextmanager
    def _synchronized(self, lane: _Lane) -> Iterator[None]:
        """Wait at the end of the block for the copies that it queued: their memory must not be freed before."""
        try:
            yield
        finally:
            lane.synchronize()

    def _ready_lanes(self, nbytes: int) -> list[_Lane]:
        """Return lanes for a copy; for a small one few, because pinned memory takes long to make."""
        wanted = min(self._wanted_lanes, -(-nbytes // CHUNK_BYTES))
        while len(self._lanes) < wanted:
            self._lanes.append(_Lane(self._cuda))
        return self._lanes[:wanted]
