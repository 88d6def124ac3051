"""Work of a keeper: allocate, fill, seal, export and free images on its device. Not covered: sockets (`server`).

A CUDA context takes hundreds of megabytes of the device. Memory with descriptors (`vmm`) needs none: a keeper of such
memory never makes one, and what copies or hashes images runs in a mover, a process that is started when there is
something to move and ends when it has rested for `idle_s` seconds. Legacy allocations (`ipc`) live in the context that
made them: their keeper moves images itself, and gives the context back when it holds none. Methods may be called from
several threads.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, CudaError, DrainingError, ImageError, NotSupportedError
from trims.keeper.head import make_head, sum_in_head
from trims.keeper.messages import Verdict
from trims.keeper.mover_process import MoverProcess
from trims.keeper.moves import LocalMover, Move, Turns
from trims.memory.cuda.drivers import device_memory
from trims.memory.cuda.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from trims.memory.cuda.api import Cuda
    from trims.memory.cuda.drivers import Allocation, Export

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Held:
    """One image on the device.

    Attributes:
        number: Identifies the image; never used by an earlier keeper.
        nbytes: Length of the image in bytes.
        key: Image key; empty until sealed.
        digest: blake3 of all bytes; empty until sealed.
        head_fd: Descriptor of the head; -1 until the image is filled.
        filled: Whether every byte is on the device.
        in_use: Lock held while the memory is written, sealed, read by the keeper itself, or freed: one after the other,
            whichever connections ask for it.
        going: Whether the memory is being freed: no other order may use the image.
    """

    number: int
    nbytes: int
    allocation: Allocation
    key: str = ""
    digest: str = ""
    head_fd: int = -1
    filled: bool = False
    in_use: threading.Lock = field(default_factory=threading.Lock, repr=False)
    going: bool = False

    def take_head(self, fd: int) -> None:
        """Mark the image filled; `fd` is the head that describes its bytes."""
        if self.head_fd >= 0:
            os.close(self.head_fd)
        self.head_fd, self.filled = fd, True


class Keeper:
    """The images of one device.

    Args:
        cuda: The driver, without a context.
        uuid: UUID of the device. Raises NotSupportedError if it is not visible.
        driver: `auto`, `vmm` or `ipc`.
        idle_s: Seconds after which the mover, or an unused context, is ended.
        verify_fills: Check what was copied to the device against the checksum that the image states.
    """

    def __init__(
        self, cuda: Cuda, uuid: str, driver: str = "auto", *, idle_s: float = 10.0, verify_fills: bool = True
    ) -> None:
        self._cuda = cuda
        self._idle_s = idle_s
        self._verify_fills = verify_fills
        self._lock = threading.Lock()
        self._working = threading.Condition()
        self._busy = 0
        #: Id of the thread that frees everything; from then on no other thread may begin an order.
        self._closer: int | None = None
        self._idle_since_s = 0.0
        self._held: dict[int, Held] = {}
        # Random, so that an order for an earlier keeper's image never hits an image of this one.
        self._numbers = itertools.count(secrets.randbits(40) << 12)
        self.device = cuda.select(uuid)
        self.memory = device_memory(driver, cuda, self.device)
        self._turns = Turns()
        local = LocalMover(cuda, self.device, self.memory)
        #: Makes a context current in this thread where the memory needs one.
        self._at_memory: Callable[[], AbstractContextManager[None]] = (
            local.context if self.memory.needs_context else contextlib.nullcontext
        )
        self.mover = local if self.memory.needs_context else MoverProcess(self.memory, uuid, cuda.kind)

    # -- images ----------------------------------------------------------------------------------------------------

    def create(self, nbytes: int) -> Held:
        """Allocate memory for an image. Raises CapacityError."""
        if nbytes <= 0:
            raise CallerError(f"an image of {nbytes} bytes cannot be held")
        with self._order(), self._at_memory():
            allocation = self.memory.allocate(nbytes)
            with self._lock:  # within the order: `rest` must see this image before a context may be given back
                held = Held(next(self._numbers), nbytes, allocation)
                self._held[held.number] = held
        return held

    def fill(self, number: int, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Copy an image from a file. When this returns, the device has every byte.

        Raises:
            ImageError: The file is no image, too short, or not what its checksum states.
            CudaError: The device holds other bytes than the file.

        The image then stays unfilled: fill it again or free it.
        """
        with self._writing(number) as held:
            _check_length(fd, held.nbytes)
            head = make_head(fd, held.nbytes)
            try:
                self._move(Move("fill", held.nbytes, fd), held, on_progress)
                self._check_filled(held, head, on_progress, fd)
            except BaseException:
                os.close(head)
                raise
            held.take_head(head)

    def copy(self, number: int, export: Export, head_fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Copy a sealed image from another keeper, whose device must be a peer of this one.

        Args:
            number: The image to fill.
            export: The other keeper's memory.
            head_fd: Head of the other image; this image uses a duplicate of it.
            on_progress: Called with the bytes done so far.

        Raises:
            NotSupportedError: The devices cannot reach each other.
            CudaError: Other bytes arrived than the image's checksum states.
        """
        with self._writing(number) as held:
            _check_length(head_fd, held.nbytes)
            if export.size_bytes < held.nbytes:
                raise ImageError(f"the export has {export.size_bytes} bytes, the image {held.nbytes}")
            self._move(Move("copy", held.nbytes, source=export), held, on_progress)
            self._check_filled(held, head_fd, on_progress)
            held.take_head(os.dup(head_fd))

    def seal(self, number: int, key: str, digest: str) -> None:
        """Seal an image: from now on it can be exported and is not written any more."""
        if not self._find(number).filled:
            raise CallerError(f"image {number} cannot be sealed: it is not filled")
        with self._writing(number) as held:
            held.digest, held.key = digest, key

    def export(self, number: int) -> tuple[Export, int]:
        """Return the handle that a borrower needs for the memory, and a descriptor of the head.

        The caller closes both.
        """
        with self._using(number) as held, self._order(), self._at_memory():
            exported = self.memory.export(held.allocation)
            try:
                return exported, os.dup(held.head_fd)
            except BaseException:
                exported.close()
                raise

    def read(self, number: int, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Copy a sealed image into a file that is at least as long."""
        with self._using(number) as held:
            _check_length(fd, held.nbytes)
            self._move(Move("read", held.nbytes, fd), held, on_progress)

    def digest(self, number: int) -> str:
        """Return blake3 of the bytes that lie on the device now, in hex."""
        with self._using(number) as held:
            return self._move(Move("digest", held.nbytes), held)

    def verify(self, number: int) -> Verdict:
        """Compare the bytes that lie on the device now with what was sealed.

        By the checksum that the image states, which the device computes; by blake3, on the host, where there is none or
        the device cannot.
        """
        with self._using(number) as held:
            expected = sum_in_head(held.head_fd, held.nbytes)
            if expected is not None:
                with contextlib.suppress(NotSupportedError):  # the verdict says which way was taken
                    way, found = self._sum(Move("sum", held.nbytes, expected=expected), held)
                    return Verdict(way, f"{found:016x}", f"{expected:016x}")
            return Verdict("blake3", self._move(Move("digest", held.nbytes), held), held.digest)

    def free(self, number: int) -> None:
        """Free an image, once no other order uses it. Idempotent.

        For `ipc` the caller must make sure that no borrower has the memory open.

        If the driver refuses, the image stays, and `free` may be called again.
        """
        with self._lock:
            held = self._held.get(number)
        if held is None:
            return
        with held.in_use:
            if number not in self._held:  # another thread has freed it meanwhile
                return
            held.going = True
            try:
                with self._order(), self._at_memory():
                    self.memory.free(held.allocation)
            except BaseException:
                held.going = False
                raise
            with self._lock:
                del self._held[number]
            if held.head_fd >= 0:
                os.close(held.head_fd)

    def held(self) -> list[Held]:
        """Return all images, sealed or not."""
        with self._lock:
            return list(self._held.values())

    def room(self) -> tuple[int, int]:
        """Return free and total bytes of the device, for all processes together."""
        for found in survey(self._cuda.kind):
            if found.uuid == self.device.uuid:
                return found.free_bytes, found.total_bytes
        raise NotSupportedError(f"the driver's management library does not list {self.device.uuid} just now")

    # -- the mover -------------------------------------------------------------------------------------------------

    @property
    def awake(self) -> bool:
        """Return whether there is a context: a mover's, or this process's own."""
        return self.mover.awake

    def rest(self) -> None:
        """End the mover, or give the context back, if nothing has needed it for `idle_s` seconds.

        Call this regularly.
        """
        with self._working:
            if not self.mover.awake or self._busy:
                return
            if self._needed() or time.monotonic() < self._rest_at_s():
                self.mover.tidy()
            else:
                self.mover.rest()

    def close(self, wait_s: float = 30.0) -> bool:
        """Free all images. Wait for running orders first: a copy must not lose the memory that it writes to.

        Returns False, and frees nothing, if they are not done within `wait_s` seconds. After True no order begins.
        """
        with self._working:
            if not self._working.wait_for(lambda: not self._busy, wait_s):
                log.error("%d orders still run after %.0f s: nothing is freed", self._busy, wait_s)
                return False
            self._closer = threading.get_ident()
        for held in self.held():
            self.free(held.number)
        self.mover.close()
        return True

    def _needed(self) -> bool:
        """Return whether an image lives in the context."""
        return self.memory.needs_context and bool(self._held)

    def _rest_at_s(self) -> float:
        return self._idle_since_s + self._idle_s

    def _check_filled(
        self, held: Held, head_fd: int, on_progress: Callable[[int], None] | None, fd: int | None = None
    ) -> None:
        """Compare what was copied with what the image's head states, if it states anything. Raises as `fill`.

        Args:
            on_progress: Called meanwhile, with all bytes.
            fd: The file that was copied; None if it was another device's memory.
        """
        expected = sum_in_head(head_fd, held.nbytes) if self._verify_fills else None
        if expected is None:
            return
        progress = None if on_progress is None else lambda _: on_progress(held.nbytes)
        try:
            _, found = self._sum(Move("sum", held.nbytes, expected=expected), held, progress)
        except NotSupportedError as error:
            log.warning("what is copied to the device is not verified there: %s", error)
            self._verify_fills = False
            return
        if found == expected:
            return
        if fd is not None and self._sum(Move("sum_file", held.nbytes, fd), held, progress)[1] != expected:
            raise ImageError("the image has other bytes than its checksum states: they were changed")
        raise CudaError(
            f"the device {self.device.uuid} holds other bytes than were copied there: its memory or the way to it is "
            "faulty; see what its driver reports (nvidia-smi -q -d ECC)"
        )

    def _sum(self, move: Move, held: Held, on_progress: Callable[[int], None] | None = None) -> tuple[str, int]:
        way, found = self._move(move, held, on_progress).split()
        return way, int(found, 16)

    def _move(self, move: Move, held: Held, on_progress: Callable[[int], None] | None = None) -> str:
        with self._order(), self._turns.taken(on_progress) as progress:
            return self.mover.move(move, held.allocation, progress)

    @contextlib.contextmanager
    def _order(self) -> Iterator[None]:
        """Keep the mover and the context from being ended within the block."""
        with self._working:
            if self._closer not in (None, threading.get_ident()):
                raise DrainingError(f"the keeper of {self.device.uuid} is ending")
            self._busy += 1
        try:
            yield
        finally:
            with self._working:
                self._busy -= 1
                self._idle_since_s = time.monotonic()
                self._working.notify_all()

    @contextlib.contextmanager
    def _writing(self, number: int) -> Iterator[Held]:
        """Lend an unsealed image to one order alone. Raises CallerError while another order uses it."""
        held = self._find(number)
        if not held.in_use.acquire(blocking=False):
            raise CallerError(f"image {number} is used by another order just now; wait for its answer")
        try:
            self._find(number)  # it may have been freed just before
            if held.key:
                raise CallerError(f"image {number} is sealed")
            yield held
        finally:
            held.in_use.release()

    @contextlib.contextmanager
    def _using(self, number: int) -> Iterator[Held]:
        """Lend a sealed image, which is not freed within the block."""
        held = self._find(number)
        with held.in_use:
            self._find(number)
            if not held.key:
                raise CallerError(f"image {number} is not sealed yet")
            yield held

    def _find(self, number: int) -> Held:
        with self._lock:
            held = self._held.get(number)
        if held is None or held.going:
            raise CallerError(f"this keeper holds no image {number}")
        return held


def _check_length(fd: int, nbytes: int) -> None:
    found = os.fstat(fd).st_size
    if found < nbytes:
        raise ImageError(f"the file has {found} bytes, the image {nbytes}: truncated?")
