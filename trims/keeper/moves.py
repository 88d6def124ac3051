"""Orders for a mover, and the mover in this process: what copies or hashes images needs the device's context.

Memory with descriptors is reached from a process of its own, the mover (`mover_process`), whose context costs the
keeper nothing. Legacy allocations live in the context that made them, so the keeper moves those itself.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trims.keeper.mover import BY_HOST, Mover
from trims.memory.cuda.drivers import Allocation, Export, device_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.memory.cuda.api import Cuda, Device
    from trims.memory.cuda.drivers import DeviceMemory

_STILL_THERE_S = 5.0
#: Moves that write to the image's memory.
WRITING = ("fill", "copy")


@dataclass(frozen=True, slots=True)
class Move:
    """One image to be copied or hashed.

    Attributes:
        op: `fill` from a file, `copy` from another device, `read` into a file, `digest`, `sum` (of a checksum), and
            `sum_file`, of the file.
        fd: The file of `fill`, `read` and `sum_file`.
        source: The other device's memory, for `copy`.
        expected: What the sum should be. Any other one is summed up again by the host.
    """

    op: str
    nbytes: int
    fd: int = -1
    source: Export | None = None
    expected: int = 0


class Moving(Protocol):
    """A mover, as the keeper sees it. One move at a time."""

    @property
    def awake(self) -> bool:
        """Return whether it has a context, or is about to give one back."""
        ...

    def move(self, move: Move, allocation: Allocation, on_progress: Callable[[int], None]) -> str:
        """Carry out a move. Return the digest of `digest`, the way and the sum in hex of a sum, else nothing.

        Raises:
            DeviceLostError: The device is lost.
            NotSupportedError: The device computes no sums.
            TrimsError: This move failed; the next one may succeed.
        """
        ...

    def tidy(self) -> None:
        """Give up what is kept for segments of the host that are gone. Call it regularly, while nothing moves."""
        ...

    def rest(self) -> None:
        """Give the context back. Call it only while nothing moves; returns at once."""
        ...

    def close(self) -> None:
        """Give the context back, and wait for that."""
        ...


class Turns:
    """Lets one move run at a time.

    While the running move makes progress, a waiting one reports progress of 0 bytes, so that the daemon does not take
    it for hanging.
    """

    def __init__(self) -> None:
        self._running = threading.Lock()
        self._steps = 0

    @contextlib.contextmanager
    def taken(self, on_progress: Callable[[int], None] | None) -> Iterator[Callable[[int], None]]:
        """Wait for the turn; have it for the block, whose progress is to be reported to what is yielded."""
        seen = self._steps
        while not self._running.acquire(timeout=_STILL_THERE_S):
            if on_progress is not None and self._steps != seen:
                seen = self._steps
                on_progress(0)

        def progress(done: int) -> None:
            self._steps += 1
            if on_progress is not None:
                on_progress(done)

        try:
            yield progress
        finally:
            self._running.release()


class LocalMover:
    """Moves images over a context in this process, made when it is needed first.

    Args:
        device: Device that `cuda` has selected.
        memory: The way its memory is shared.
    """

    def __init__(self, cuda: Cuda, device: Device, memory: DeviceMemory) -> None:
        self._cuda = cuda
        self._device = device
        self._memory = memory
        self._mover = Mover(cuda, device)
        self._taking = threading.Lock()
        self._awake = False

    @property
    def awake(self) -> bool:
        """See `Moving.awake`."""
        return self._awake

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Have a context, current in this thread, for the length of the block.

        It is not current for longer: `rest` destroys the context, and calls that need no context would fail in a thread
        where a destroyed one is current.
        """
        with self._taking:
            if not self._awake:
                self._cuda.retain(self._device.uuid)
                self._awake = True
        with self._cuda.bound():
            yield

    def move(self, move: Move, allocation: Allocation | Export, on_progress: Callable[[int], None]) -> str:
        """See `Moving.move`. Memory of another process is given as its export."""
        writable = move.op in WRITING
        with self.context():
            if isinstance(allocation, Export):
                opened = self._memory.open(allocation, writable=writable)
            else:
                opened = self._memory.reach(allocation, writable=writable)
            try:
                return self._moved(move, opened.address, on_progress)
            finally:
                self._memory.close(opened)

    def _moved(self, move: Move, address: int, on_progress: Callable[[int], None]) -> str:
        if move.op == "digest":
            return self._mover.digest(address, move.nbytes, on_progress)
        if move.op == "sum":
            return "{} {:x}".format(*self._mover.sum(address, move.nbytes, move.expected, on_progress))
        if move.op == "sum_file":
            return f"{BY_HOST} {self._mover.sum_file(move.fd, move.nbytes, on_progress):x}"
        if move.op == "fill":
            self._mover.copy_in(move.fd, move.nbytes, address, on_progress)
        elif move.op == "read":
            self._mover.copy_out(address, move.nbytes, move.fd, on_progress)
        else:
            assert move.source is not None
            theirs = device_memory(move.source.driver, self._cuda, self._device)
            opened = theirs.open(move.source, peer=True)
            try:
                self._mover.copy_across(opened.address, move.nbytes, address, on_progress)
            finally:
                theirs.close(opened)
        return ""

    def tidy(self) -> None:
        """See `Moving.tidy`."""
        if self._awake:
            with self._cuda.bound():
                self._mover.tidy()

    def rest(self) -> None:
        """See `Moving.rest`."""
        with self._taking:
            if self._awake:
                with self._cuda.bound():
                    self._mover.close()
                self._awake = False  # also if `leave` fails: the next move takes a context again
                self._cuda.leave()

    def close(self) -> None:
        """See `Moving.close`."""
        self.rest()
