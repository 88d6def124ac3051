"""The borrower's half of sharing: a descriptor becomes memory this process can read.

Standard library only. An attachment owns two mappings of the same pages: a read-only one, and, made on demand, a
private copy-on-write one for what a framework may write. Views handed out keep the mapping alive: `close` takes
effect when the last of them is gone, and only then is `on_release` called.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING

from trims.core.errors import ClosedError, ImageError

if TYPE_CHECKING:
    from collections.abc import Callable


class Attachment:
    """One image mapped into this process.

    Args:
        fd: A readable descriptor; it is duplicated, the caller keeps his own.
        nbytes: Length of the image. Raises ImageError if the file is shorter: reading past its end would kill
            the process.
        on_release: Called once, from any thread, when no mapping of this attachment is left.
    """

    def __init__(self, fd: int, nbytes: int, on_release: Callable[[], None] | None = None) -> None:
        held = os.fstat(fd).st_size
        if held < nbytes or nbytes <= 0:
            raise ImageError(f"the segment has {held} bytes, {nbytes} were announced")
        self.nbytes = nbytes
        self._fd = os.dup(fd)
        self._lock = threading.Lock()
        self._live = 0
        self._closed = False
        self._on_release = on_release
        self._shared: mmap.mmap | None = None
        self._private: mmap.mmap | None = None
        try:
            self._shared = self._track(mmap.mmap(self._fd, nbytes, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED))
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def closed(self) -> bool:
        """True after `close`, even while views are still alive."""
        return self._closed

    @property
    def data(self) -> memoryview:
        """All bytes, read-only. Writing through any view of it is refused by Python and fatal from C."""
        mapping = self._shared
        if mapping is None:
            raise ClosedError("these weights are closed; open them again to read")
        return memoryview(mapping)

    def private_data(self) -> memoryview:
        """All bytes, writable, copy-on-write: pages are shared until this process writes them."""
        with self._lock:
            if self._closed:
                raise ClosedError("these weights are closed; open them again to read")
            if self._private is None:
                self._private = self._track(mmap.mmap(self._fd, self.nbytes, access=mmap.ACCESS_COPY))
            return memoryview(self._private)

    def close(self) -> None:
        """Give the mappings up. Views that are still alive stay readable and delay the release. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            mappings = (self._shared, self._private)
            self._shared = self._private = None
            os.close(self._fd)
        for mapping in mappings:
            if mapping is not None:
                _try_close(mapping)

    def _track(self, mapping: mmap.mmap) -> mmap.mmap:
        self._live += 1
        weakref.finalize(mapping, self._mapping_gone).atexit = False
        return mapping

    def _mapping_gone(self) -> None:
        self._live -= 1
        if self._live == 0 and self._on_release is not None:
            self._on_release()


def _try_close(mapping: mmap.mmap) -> None:
    """Unmap now if nobody looks; otherwise the last view's end unmaps it."""
    try:
        mapping.close()
    except BufferError:
        return
