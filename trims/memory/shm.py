"""The owner's half of CPU sharing: named POSIX shared memory.

A segment is written under a name that says it is unfinished (mode 0600), then sealed: mode 0400 and, in one rename,
a name that carries key and digest. So a segment found after a crash tells by its name alone what it should be, and
there is no record beside it that could disagree. Borrowers get read-only descriptors, never names.

Segments lie in /dev/shm, or in any other tmpfs that was mounted for them. Not covered: capacity (the tier's), checking
of contents (`trims.tiers.cpu`), the borrower's half (`attach`).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import posix_ipc

from trims.core.errors import CapacityError, ConfigError, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where Linux shows POSIX shared memory; posix_ipc can neither rename nor list.
SHM_FOLDER = Path("/dev/shm")  # noqa: S108 - this is the point
_UNFINISHED = "filling"


@dataclass(slots=True)
class Segment:
    """A shared-memory object this process owns.

    Attributes:
        name: Of the file in `folder`.
        nbytes: Length.
        fd: Writable until sealed, read-only afterwards. Owned: `close` it.
        folder: The tmpfs it lies in.
    """

    name: str
    nbytes: int
    fd: int
    folder: Path = SHM_FOLDER

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / self.name

    def close(self) -> None:
        """Close the descriptor; the memory stays as long as its name does. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create(prefix: str, label: str, nbytes: int, folder: Path = SHM_FOLDER) -> Segment:
    """Make an unfinished segment of this length. Its pages are not allocated yet: see `allocate`."""
    name = f"{prefix}.{_UNFINISHED}.{label}"
    fd = _create(name, folder)
    try:
        os.set_inheritable(fd, False)
        os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        unlink(name, folder)
        raise shm_full(error, nbytes, folder) from error
    return Segment(name, nbytes, fd, folder)


def _create(name: str, folder: Path) -> int:
    if folder == SHM_FOLDER:
        return int(posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, mode=0o600).fd)
    return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def allocate(segment: Segment) -> None:
    """Reserve every page now, so that a full /dev/shm is an error here and not a SIGBUS in whoever writes.

    Raises:
        CapacityError: The shared-memory file system has no room; the message gives its size.
    """
    try:
        os.posix_fallocate(segment.fd, 0, segment.nbytes)
    except OSError as error:
        raise shm_full(error, segment.nbytes, segment.folder) from error


def shm_full(error: OSError, nbytes: int, folder: Path = SHM_FOLDER) -> Exception:
    """The error for a failed write to shared memory: CapacityError if it was full, else what it was."""
    if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFAULT, errno.EFBIG):
        return error
    held = os.statvfs(folder)
    return CapacityError(
        f"{folder} is full: {nbytes} bytes needed, {held.f_bavail * held.f_frsize} free of "
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
        segment.path.rename(segment.folder / name)
        return open_sealed(name, segment.folder)
    except BaseException:
        unlink(segment.name, segment.folder)
        unlink(name, segment.folder)
        raise
    finally:
        segment.close()


def open_sealed(name: str, folder: Path = SHM_FOLDER) -> Segment:
    """Open a sealed segment read-only. Raises ImageError if its mode says that it was never sealed."""
    fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    status = os.fstat(fd)
    if status.st_mode & 0o777 != 0o400 or status.st_uid != os.geteuid():
        os.close(fd)
        raise ImageError(f"segment {name} is not sealed: mode {status.st_mode & 0o777:o}, user {status.st_uid}")
    return Segment(name, status.st_size, fd, folder)


def unlink(name: str, folder: Path = SHM_FOLDER) -> None:
    """Remove the name; memory goes with the last mapping. A name that is gone already is fine."""
    try:
        if folder == SHM_FOLDER:
            posix_ipc.unlink_shared_memory(f"/{name}")
        else:
            (folder / name).unlink()
    except (posix_ipc.ExistentialError, FileNotFoundError):
        return


def names(prefix: str, folder: Path = SHM_FOLDER) -> Iterator[str]:
    """All segments under this prefix, finished or not."""
    for path in sorted(folder.glob(f"{prefix}.*")):
        yield path.name


def file_system_of(folder: Path) -> str:
    """Its type, as mount calls it. Raises ConfigError if the folder is not there."""
    try:
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used for segments: {error.strerror}") from error
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, _, tail = line.partition(" - ")
        if head.split()[2] == device:
            return tail.split(" ", 1)[0]
    return "unknown"


def check_folder(folder: Path) -> None:
    """Raises ConfigError if segments in this folder would not be memory, or not be this user's."""
    if file_system_of(folder) != "tmpfs":
        raise ConfigError(
            f"{folder} is not on a tmpfs: segments would be written to disk; mount one there, such as "
            f"`mount -t tmpfs -o huge=within_size,mode=0700,size=8g tmpfs {folder}`"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written by this user; mount it with uid={os.geteuid()}")


def parse_name(prefix: str, name: str) -> tuple[str, str] | None:
    """Key and digest that a sealed segment's name states, or None for an unfinished or foreign one."""
    parts = name.removeprefix(f"{prefix}.").split(".")
    return (parts[0], parts[1]) if len(parts) == 2 and parts[0] != _UNFINISHED else None
