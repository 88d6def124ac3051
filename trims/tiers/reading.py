"""Reading ahead of those that map a file: page faults ask a disk for little at a time, and wait for each answer."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import DrainingError
from trims.memory.reading import is_cached

if TYPE_CHECKING:
    import threading

    from trims.tiers.base import Extent

_PIECE_BYTES = 8 << 20
#: Read-ahead of the kernel round a page fault, in KiB, from which on a device needs no help: two that read ahead for
#: one reader hold each other up.
_FAR_KIB = 1024
#: Bytes read of a file on such a device, while the reader still builds its module and asks for nothing.
_START_BYTES = 64 << 20
_DEVICES = Path("/sys/class/bdi")


def read_ahead(extent: Extent, cancelled: threading.Event) -> None:
    """Have the kernel read the pages of an artifact's files, in the order of the files, except those it has.

    From a device of which it reads far ahead by itself, only the beginning of each file, one piece at a time: what a
    reader asks for meanwhile waits for one piece at most.

    Ends early if the replica is freed, or when `cancelled` is set. Never raises: without it, reading is only slower.
    """
    with contextlib.suppress(OSError, DrainingError):
        for part in extent.pages:
            with extent.reader(part) as fd:
                far = _reads_far(fd)
                end = part.offset + (min(part.nbytes, _START_BYTES) if far else part.nbytes)
                for at in range(part.offset, end, _PIECE_BYTES):
                    if cancelled.is_set() or extent.closed:
                        return
                    length = min(_PIECE_BYTES, end - at)
                    if not is_cached(fd, at, length, untold=False):  # the kernel would look up each of its pages
                        os.posix_fadvise(fd, at, length, os.POSIX_FADV_WILLNEED)
                        if far:
                            os.pread(fd, 1, at + length - 1)


def _reads_far(fd: int) -> bool:
    """Return whether the kernel reads this file's device far ahead by itself; False where that is unknown."""
    device = os.fstat(fd).st_dev
    try:
        told = (_DEVICES / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb").read_text()
        return int(told) >= _FAR_KIB
    except (OSError, ValueError):
        return False
