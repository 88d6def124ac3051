"""Reading ahead of those that map a file: page faults ask a disk for little at a time, and wait for each answer."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from trims.core.errors import DrainingError
from trims.memory.reading import is_cached

if TYPE_CHECKING:
    import threading

    from trims.tiers.base import Extent

_PIECE_BYTES = 8 << 20


def read_ahead(extent: Extent, cancelled: threading.Event) -> None:
    """Have the kernel read the pages of an artifact's files, in the order of the files, except those it has.

    Ends early if the replica is freed, or when `cancelled` is set. Never raises: without it, reading is only slower.
    """
    with contextlib.suppress(OSError, DrainingError):
        for part in extent.pages:
            with extent.reader(part) as fd:
                end = part.offset + part.nbytes
                for at in range(part.offset, end, _PIECE_BYTES):
                    if cancelled.is_set() or extent.closed:
                        return
                    length = min(_PIECE_BYTES, end - at)
                    if not is_cached(fd, at, length):  # the kernel would look up each of its pages
                        os.posix_fadvise(fd, at, length, os.POSIX_FADV_WILLNEED)
