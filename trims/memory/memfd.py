"""Sealed memory without a name: the driver for tenants that are not trusted, root in a container included.

The kernel itself refuses every write to a sealed memfd, by whatever descriptor or mapping, of every process; seals
cannot be taken off. There is no name, so nothing can be found or removed behind the owner's back, and nothing outlives
it: the memory goes with the last descriptor and mapping.

The file system below has no size, so room is asked for beforehand (`room`).
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import time
from typing import TYPE_CHECKING

from trims.core.errors import ImageError
from trims.memory.available import room_bytes
from trims.memory.room import Room, no_memory
from trims.memory.segments import Segment, is_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Linux 6.3. Python has no name for it before 3.14.
_MFD_NOEXEC_SEAL = 0x0008
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
#: A process that is being killed may keep its mapping a moment longer than its parent waits.
_SETTLE_S = 2.0
_LOOK_AGAIN_S = 0.005


class SealedMemfd:
    """Sealed memfds of this process. See `SegmentDriver`.

    Args:
        prefix: Shown in /proc/PID/maps of every process that has one mapped.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._room = Room()

    def create(self, label: str, nbytes: int) -> Segment:
        """See `SegmentDriver.create`."""
        name = f"{self._prefix}.{label}.{next(self._numbers)}"
        segment = Segment(name, nbytes, _memfd(name), named=False)
        try:
            os.ftruncate(segment.fd, nbytes)
            self._room.take(segment)
        except OSError as error:
            segment.close()
            raise self.explain(error, nbytes) from error
        except BaseException:
            segment.close()
            raise
        return segment

    def allocate(self, segment: Segment) -> None:
        """See `SegmentDriver.allocate`."""
        try:
            os.posix_fallocate(segment.fd, 0, segment.nbytes)
        except OSError as error:
            raise self.explain(error, segment.nbytes) from error

    def seal(self, segment: Segment, key: str, digest: str) -> Segment:
        """See `SegmentDriver.seal`. Raises ImageError if a process keeps it mapped for writing."""
        del key, digest  # it is never found again, so it need not be recognised
        try:
            os.fchmod(segment.fd, 0o400)
            _add_seals(segment)
            fd = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDONLY | os.O_CLOEXEC)
            return Segment(segment.name, segment.nbytes, fd, named=False)
        finally:
            self.discard(segment)

    def discard(self, segment: Segment) -> None:
        """See `SegmentDriver.discard`."""
        self._room.give(segment)
        segment.close()

    def remove(self, name: str) -> None:
        """See `SegmentDriver.remove`: there is no name."""

    def names(self) -> Iterator[str]:
        """See `SegmentDriver.names`: none."""
        return iter(())

    def open(self, name: str) -> tuple[Segment, str, str]:
        """See `SegmentDriver.open`: there is nothing to open by name."""
        raise ImageError(f"{name} is memory without a name; it cannot be found again")

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `SegmentDriver.explain`."""
        return no_memory(nbytes, room_bytes()) if is_full(error) else error


def _memfd(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)


def _add_seals(segment: Segment) -> None:
    until_s = time.monotonic() + _SETTLE_S
    while True:
        try:
            fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if time.monotonic() > until_s:
                raise ImageError(f"{segment.name} cannot be sealed: a process still has it mapped to write") from error
            time.sleep(_LOOK_AGAIN_S)
        else:
            return


def sealed_file(name: str, nbytes: int, write: Callable[[int], None]) -> int:
    """Return a sealed, read-only descriptor of a nameless file. `write` fills parts of it; the rest takes no memory.

    Args:
        name: Shown in /proc/PID/maps.
        write: Gets a descriptor that can be written to; it is closed afterwards. What it raises is passed on.

    Returns:
        The descriptor; the caller must close it.
    """
    fd = _memfd(name)
    try:
        os.ftruncate(fd, nbytes)
        write(fd)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all bytes at an offset, however many the kernel takes at a time. Raises OSError."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
