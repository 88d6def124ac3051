"""The borrower's half of sharing: a descriptor becomes memory this process can read.

Standard library only. An attachment owns a read-only mapping and, made on demand, private copy-on-write ones of
the same pages for what a framework may write: one for each request, so that no two write into each other. Views
handed out keep their mapping alive: `close` takes effect when the last of them is gone, and only then is `on_release`
called.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
import weakref

from trims.core.errors import ClosedError, ImageError, NotSupportedError
from trims.memory.mapping import FileMapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trims.memory.pages import Pages
    from trims.memory.suspended_mapping import SuspendedMapping


class Attachment:
    """One image mapped into this process.

    Args:
        fd: A readable descriptor; it is duplicated, the caller keeps its own.
        nbytes: Length of the image. Raises ImageError if the file is shorter: reading past its end would kill
            the process.
        on_release: Called once, from any thread, when no mapping of this attachment is left.
        pages: Parts of the image that lie in other files; their descriptors are duplicated, too, each before the next
            part is asked for. Raises ImageError if a file is shorter, or a part lies outside the image.
    """

    def __init__(
        self, fd: int, nbytes: int, on_release: Callable[[], None] | None = None, pages: Iterable[Pages] = ()
    ) -> None:
        held = os.fstat(fd).st_size
        if held < nbytes or nbytes <= 0:
            raise ImageError(f"the segment has {held} bytes, {nbytes} were announced")
        self.nbytes = nbytes
        self._fds: list[int] = []
        self._close_fds = weakref.finalize(self, _close_all, fds := self._fds)
        self._pages: list[Pages] = []
        self._lock = threading.Lock()
        self._live = _Live(on_release)
        self._closed = False
        self._parked = False
        try:
            fds.append(os.dup(fd))
            self._fd = fds[0]
            for part in pages:
                _check_pages(part, nbytes)
                fds.append(os.dup(part.fd))
                self._pages.append(part._replace(fd=fds[-1]))
            self._mapped = self._live.map(self._fd, nbytes, self._pages)
            self._shared: FileMapping | None = self._mapped
        except BaseException:
            self._close_fds()
            raise

    def after_fork(self) -> None:
        """Renew the lock in a forked child: the thread that held the lock does not exist there."""
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """Return whether `close` was called; views may still be alive."""
        return self._closed

    @property
    def data(self) -> memoryview:
        """Return all bytes, read-only. Python refuses to write through any view of it; writing from C is fatal."""
        mapping = self._shared
        if mapping is None:
            raise ClosedError("these weights are closed; open them again to read")
        return mapping.view()

    def private_data(self) -> memoryview:
        """Return all bytes in a new mapping, writable, copy-on-write: a page is shared until it is written.

        What is written is seen through views of this one mapping only, not through that of another call.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("these weights are closed; open them again to read")
            if self._parked:
                raise ClosedError("these weights are parked; wake them to read")
            return self._live.map(self._fd, self.nbytes, self._pages, private=True).view()

    @property
    def region(self) -> None:
        """Return None: nothing of the attachment lies on a device."""
        return

    @property
    def place(self) -> None:
        """Return None: only the owner knows the place."""
        return

    @property
    def lost(self) -> None:
        """Return None: a mapped file stays whole whichever process dies."""
        return

    def park(self, identity: tuple[int, int]) -> SuspendedMapping:
        """Let go of the memory and keep its addresses; nothing may read it until `wake`.

        Args:
            identity: Device and inode of the file.

        Raises:
            NotSupportedError: The memory consists of several files, is closed, or is not found in the kernel's list.
            OSError: The kernel refused.
        """
        from trims.memory.suspended_mapping import SuspendedMapping

        with self._lock:
            if self._pages or self._closed or self._parked:
                raise NotSupportedError("only open weights that lie in one file can be parked, once")
            parking = SuspendedMapping(identity)
            self._parked = True
            return parking

    def wake(self, parking: SuspendedMapping, fd: int, *, populate: bool = False) -> None:
        """Map the same file again, at the same addresses; see `SuspendedMapping`. Raises ClosedError, OSError."""
        with self._lock:
            if self._closed:
                raise ClosedError("these weights are closed; open them again to read")
            parking.restore(fd, populate=populate)
            self._parked = False

    @property
    def can_exchange(self) -> bool:
        """Return whether `exchange` would change anything now, as far as can be said without trying."""
        return self._live.mappings == 1 and not self._parked and self._mapped.can_exchange

    def exchange(self, fd: int) -> bool:
        """Map the same bytes from another file instead, at the same addresses; views stay valid.

        Args:
            fd: A readable descriptor; it is duplicated, the caller keeps its own.

        Returns:
            False if nothing was changed: a copy-on-write mapping of the present file is alive, all memory is unmapped,
            or the mapping is of a kind that cannot be exchanged (see `FileMapping.exchange`).

        Raises:
            ImageError: The file is too short.
            OSError: The kernel refused.
        """
        held = os.fstat(fd).st_size
        if held < self.nbytes:
            raise ImageError(f"the segment has {held} bytes, the image {self.nbytes}")
        with self._lock:
            if self._live.mappings != 1 or self._parked:
                return False
            fds = [] if self._closed else [os.dup(fd)]  # before: afterwards nothing may fail
            exchanged = False
            try:
                exchanged = self._mapped.exchange(fd)
            finally:
                if not exchanged:
                    _close_all(fds)
            if fds and exchanged:
                before, self._fd = self._fd, fds[0]
                self._fds[:] = fds
                os.close(before)
            return exchanged

    def close(self) -> None:
        """Give the mappings up. Views that are still alive stay readable and delay the release. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            mapping, self._shared = self._shared, None
            self._close_fds()
        if mapping is not None:
            mapping.close()

    def drop(self) -> None:
        """Close from a finaliser: nothing else refers to the attachment then."""
        self.close()


def _check_pages(part: Pages, nbytes: int) -> None:
    """Raise ImageError for pages that reading would kill the process for, or that lie over something else."""
    held = os.fstat(part.fd).st_size
    aligned = part.begin % mmap.PAGESIZE == part.offset % mmap.PAGESIZE == 0
    if not aligned or min(part.begin, part.offset) < 0 or part.nbytes <= 0 or part.begin + part.nbytes > nbytes:
        raise ImageError(f"{part.nbytes} bytes at {part.begin} are no pages of an image of {nbytes} bytes")
    if part.offset + part.nbytes > held:
        raise ImageError(
            f"the file has {held} bytes, {part.nbytes} at {part.offset} were announced: it was cut short meanwhile"
        )


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


class _Live:
    """Mappings that are left. Apart from the attachment: what finalisers hold must not keep it alive."""

    __slots__ = ("_on_release", "_tokens")

    def __init__(self, on_release: Callable[[], None] | None) -> None:
        self._tokens: set[object] = set()
        self._on_release = on_release

    @property
    def mappings(self) -> int:
        """Return how many mappings are left."""
        return len(self._tokens)

    def map(self, fd: int, nbytes: int, pages: Sequence[Pages], *, private: bool = False) -> FileMapping:
        token = object()
        self._tokens.add(token)
        try:
            gone = functools.partial(self._gone, token)
            return FileMapping(fd, nbytes, private=private, pages=pages, on_unmap=gone)
        except BaseException:
            self._tokens.discard(token)
            raise

    def _gone(self, token: object) -> None:
        self._tokens.discard(token)
        if not self._tokens and self._on_release is not None:
            self._on_release()
