"""Checks whether replicas of an earlier daemon are still as they were sealed: at a glance, and byte by byte.

A scan only looks at the ends (`check_ends`): it costs a few reads for each replica, however large. Reading and hashing
everything (`verify_bytes`) may take minutes and is done beside other work. What cannot be opened or read says nothing
of the bytes, so it is left alone and counted (`Skipped`).
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import blake3

from trims.core.errors import DrainingError, ImageError
from trims.image.index import HEADER, LENGTH, decode_header
from trims.memory.reading import read_up_to
from trims.tiers.base import identity_of
from trims.tiers.transfer import CHUNK_BYTES, check_bytes, default_threads

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from trims.core.place import Place
    from trims.tiers.base import Extent

log = logging.getLogger(__name__)


class Skipped:
    """Replicas that a scan left alone, by reason."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._names: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def add(self, name: str, error: OSError) -> None:
        """Add a replica, or a file that may be one, that could not be looked at."""
        self._names.setdefault(error.strerror or str(error), []).append(name)

    def log_all(self) -> None:
        """Log the skipped replicas, a line for each reason: a lack of descriptors may concern hundreds of files."""
        for reason, (first, *more) in self._names.items():
            if more:
                log.warning("%d at %s are left alone, such as %s: %s", len(more) + 1, self._place, first, reason)
            else:
                log.warning("%s at %s is left alone: %s", first, self._place, reason)


def check_ends(fd: int, nbytes: int) -> None:
    """Check that header and index begin as an image's do, and that the end they give is the file's. Cheap.

    Raises ImageError naming what is wrong, OSError if the file cannot be read.
    """
    prefix = os.pread(fd, LENGTH.size, 0)
    if len(prefix) < LENGTH.size:
        raise ImageError("it is too short to be an image")
    start = LENGTH.size + LENGTH.unpack(prefix)[0]
    if start > nbytes:
        raise ImageError("its header claims more bytes than the file has")
    data_bytes = decode_header(os.pread(fd, HEADER.size, start)).data_bytes
    if start + data_bytes != nbytes:
        raise ImageError(f"its index describes {start + data_bytes} bytes, the file has {nbytes}")


def verify_bytes(
    extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
) -> None:
    """See `Tier.verify`, for replicas that are files. They are read and never mapped, as they may be truncated."""
    with extent.reader() as fd:
        identity = identity_of(fd)
        nbytes = os.fstat(fd).st_size
        if nbytes != extent.nbytes:
            raise ImageError(f"{extent.label} has {nbytes} bytes, {extent.nbytes} were sealed")
        found = _digest(extent, fd, cancelled, pace)
        if found != extent.digest:
            raise ImageError(
                f"{extent.label}: its bytes hash to {found[:16]}..., {extent.digest[:16]}... was sealed: they were "
                "changed"
            )
        check_bytes(fd, extent.nbytes)
    extent.fresh, extent.identity = True, identity


def check_wanted(extent: Extent, cancelled: threading.Event | None) -> None:
    """Raise DrainingError once the event is set: then nothing is known of the bytes."""
    if cancelled is not None and cancelled.is_set():
        raise DrainingError(f"{extent.label} was not verified to its end: the daemon is shutting down")


def _digest(extent: Extent, fd: int, cancelled: threading.Event | None, pace: Callable[[int], None] | None) -> str:
    hasher = blake3.blake3(max_threads=default_threads())
    done_bytes = 0
    with memoryview(bytearray(min(CHUNK_BYTES, extent.nbytes))) as room:
        while done_bytes < extent.nbytes:
            check_wanted(extent, cancelled)
            with room[: extent.nbytes - done_bytes] as part:
                got = read_up_to(fd, part, done_bytes)
                hasher.update(part[:got])
            if got == 0:
                raise ImageError(f"{extent.label} ends at {done_bytes} bytes, {extent.nbytes} were sealed: truncated")
            done_bytes += got
            if pace is not None:
                pace(done_bytes)
    return hasher.hexdigest()
