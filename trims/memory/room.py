"""Room for segments: what machine and control groups have available, less what drafts of this process will still take.

A tmpfs may be larger than the memory below it, or have no size at all. Its pages count for the control group of the
process that touches them first, and only the kernel's out-of-memory killer says that there were too many.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from trims.core.errors import NoSpaceError
from trims.core.units import format_bytes
from trims.memory.available import room_bytes
from trims.memory.shortage import group_limit

if TYPE_CHECKING:
    from trims.memory.segments import Segment

_BLOCK_BYTES = 512


class Room:
    """Drafts of one driver, whose memory is spoken for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drafts: dict[str, Segment] = {}

    def take(self, segment: Segment) -> None:
        """Keep room for all of a segment until `give`. Raises NoSpaceError with what is left."""
        with self._lock:
            # In this order: what is filled in between counts twice, rather than not at all.
            promised = sum(max(0, each.nbytes - allocated_bytes(each)) for each in self._drafts.values())
            available = room_bytes()
            if segment.nbytes > available - promised:
                raise no_memory(segment.nbytes, available, promised)
            self._drafts[segment.name] = segment

    def give(self, segment: Segment) -> None:
        """Keep no more room for a segment: it is finished or given up. Idempotent."""
        with self._lock:
            self._drafts.pop(segment.name, None)


def allocated_bytes(segment: Segment) -> int:
    """Return the bytes of a segment that lie in memory already."""
    return os.fstat(segment.fd).st_blocks * _BLOCK_BYTES


def no_memory(nbytes: int, available: int, promised: int = 0) -> NoSpaceError:
    """Return the error for memory that machine or control group does not have.

    Args:
        promised: What of it drafts will still take.
    """
    spoken_for = f", {format_bytes(promised)} of them spoken for" if promised else ""
    limit = group_limit()
    return NoSpaceError(
        f"memory is full: {format_bytes(nbytes)} ({nbytes} bytes) needed, {format_bytes(available)} available to this "
        f"process{spoken_for}; lower the cpu tier's capacity{f'; {limit}' if limit else ''}",
        max(0, available - promised),
    )
