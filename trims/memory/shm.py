"""The owner's half of CPU sharing: named POSIX shared memory.

A segment is written under a name that says it is unfinished (mode 0600), then sealed: mode 0400 and, in one rename,
a name that carries key and digest. So a segment found after a crash tells by its name alone what it should be, and
there is no record beside it that could disagree. Borrowers get read-only descriptors, never names.

Not covered: capacity (the tier's), checking of contents (`trims.tiers.cpu`), the borrower's half (`attach`).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import posix_ipc

from trims.core.errors import CapacityError, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where Linux shows POSIX shared memory; posix_ipc can neither rename nor list.
SHM_FOLDER = Path("/dev/shm")  # noqa: S108 - this is the point
_UNFINISHED = "filling"


@dataclass(slots=True)
class Segment:
    """A shared-memory object this process owns.

    Attributes:
        name: Without the leading slash.
        nbytes: Length.
        fd: Writable until sealed, read-only afterwards. Owned: `close` it.
    """

    name: str
    nbytes: int
    fd: int

    def close(self) -> None:
        """Close the descriptor; the memory stays as long as its name does. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create(prefix: str, label: str, nbytes: int) -> Segment:
    """Make an unfinished segment of this length. Its pages are not allocated yet: see `allocate`."""
    name = f"{prefix}.{_UNFINISHED}.{label}"
    shared = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, mode=0o600)
    try:
        os.set_inheritable(shared.fd, False)
        os.ftruncate(shared.fd, nbytes)
    except BaseException:
        os.close(shared.fd)
        unlink(name)
        raise
    return Segment(name, nbytes, shared.fd)


def allocate(segment: Segment) -> None:
    """Reserve every page now, so that a full /dev/shm is an error here and not a SIGBUS in whoever writes.

    Raises:
        CapacityError: The shared-memory file system has no room; the message gives its size.
    """
    try:
        os.posix_fallocate(segment.fd, 0, segment.nbytes)
    except OSError as error:
        raise shm_full(error, segment.nbytes) from error


def shm_full(error: OSError, nbytes: int) -> Exception:
    """The error for a failed write to shared memory: CapacityError if it was full, else what it was."""
    if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFAULT, errno.EFBIG):
        return error
    held = os.statvfs(SHM_FOLDER)
    return CapacityError(
        f"{SHM_FOLDER} is full: {nbytes} bytes needed, {held.f_bavail * held.f_frsize} free of "
        f"{held.f_blocks * held.f_frsize}; lower the cpu tier's capacity or remount it larger"
    )


def seal(segment: Segment, prefix: str, key: str, digest: str) -> Segment:
    """Make the segment read-only and give it its final name; returns it with a read-only descriptor.

    After this nobody can open it for writing but its owner, and no descriptor that left this process can write.
    If it cannot be done, nothing is left of the segment.
    """
    name = f"{prefix}.{key}.{digest}"
    try:
        os.fchmod(segment.fd, 0o400)
        (SHM_FOLDER / segment.name).rename(SHM_FOLDER / name)
        return open_sealed(name)
    except BaseException:
        unlink(segment.name)
        unlink(name)
        raise
    finally:
        segment.close()


def open_sealed(name: str) -> Segment:
    """Open a sealed segment read-only. Raises ImageError if its mode says that it was never sealed."""
    fd = os.open(SHM_FOLDER / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    status = os.fstat(fd)
    if status.st_mode & 0o777 != 0o400 or status.st_uid != os.geteuid():
        os.close(fd)
        raise ImageError(f"segment {name} is not sealed: mode {status.st_mode & 0o777:o}, user {status.st_uid}")
    return Segment(name, status.st_size, fd)


def unlink(name: str) -> None:
    """Remove the name; memory goes with the last mapping. A name that is gone already is fine."""
    try:
        posix_ipc.unlink_shared_memory(f"/{name}")
    except posix_ipc.ExistentialError:
        return


def names(prefix: str) -> Iterator[str]:
    """All segments under this prefix, finished or not."""
    for path in sorted(SHM_FOLDER.glob(f"{prefix}.*")):
        yield path.name


def parse_name(prefix: str, name: str) -> tuple[str, str] | None:
    """Key and digest that a sealed segment's name states, or None for an unfinished or foreign one."""
    parts = name.removeprefix(f"{prefix}.").split(".")
    return (parts[0], parts[1]) if len(parts) == 2 and parts[0] != _UNFINISHED else None
