"""Named POSIX shared memory: the driver whose segments outlive the daemon.

A segment is written under a name that says it is unfinished (mode 0600), then sealed: mode 0400 and, in one rename,
a name that carries key and digest. So the name alone of a segment found after a crash says what it should be, and
there is no record beside it that could disagree. Borrowers get read-only descriptors, never names.

Segments lie in /dev/shm, or in any other tmpfs that was mounted for them. Not covered: checking of contents
(`trims.tiers.cpu`).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import posix_ipc

from trims.core.errors import ConfigError, ImageError, NoSpaceError
from trims.core.units import format_bytes
from trims.memory.room import Room, allocated_bytes
from trims.memory.segments import Segment, is_full

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Folder where Linux shows POSIX shared memory; posix_ipc can neither rename nor list.
SHM_FOLDER = Path("/dev/shm")  # noqa: S108 - this is the point
_UNFINISHED = "filling"
#: Pattern of the daemons' prefixes, which end in a hash of their state folders.
_PREFIX = re.compile(r"trims-[0-9a-f]{12}")
_SEALED_MODE = 0o400


class PosixShm:
    """Named segments under one prefix. See `SegmentDriver`.

    Args:
        prefix: Names of all segments start with it; two daemons must not share one.
        folder: The tmpfs they lie in.
    """

    def __init__(self, prefix: str, folder: Path = SHM_FOLDER) -> None:
        self._prefix = prefix
        self._folder = folder
        self._room = Room()

    def create(self, label: str, nbytes: int) -> Segment:
        """See `SegmentDriver.create`."""
        self._check_room(nbytes)
        name = f"{self._prefix}.{_UNFINISHED}.{label}"
        segment = Segment(name, nbytes, self._create(name))
        try:
            os.ftruncate(segment.fd, nbytes)
            self._room.take(segment)
        except OSError as error:
            self.discard(segment)
            raise self.explain(error, nbytes) from error
        except BaseException:
            self.discard(segment)
            raise
        return segment

    def _check_room(self, nbytes: int) -> None:
        """Refuse an image that the file system has no room for before all that is left is filled to find that out."""
        held = os.statvfs(self._folder)
        if held.f_blocks and nbytes > held.f_bavail * held.f_frsize:  # a tmpfs without a limit shows no blocks
            raise self._full(nbytes)

    def _create(self, name: str) -> int:
        # Not through posix_ipc, whose errors carry no number: no descriptor left would look like any other failure.
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def allocate(self, segment: Segment) -> None:
        """See `SegmentDriver.allocate`."""
        try:
            os.posix_fallocate(segment.fd, 0, segment.nbytes)
        except OSError as error:
            if not is_full(error):
                raise
            raise self._full(segment.nbytes, allocated_bytes(segment)) from error

    def seal(self, segment: Segment, key: str, digest: str) -> Segment:
        """See `SegmentDriver.seal`.

        After this only its owner can open it for writing, and no descriptor that left this process can write.
        """
        name = f"{self._prefix}.{key}.{digest}"
        try:
            os.fchmod(segment.fd, _SEALED_MODE)
            (self._folder / segment.name).rename(self._folder / name)
            return self._open(name)
        except BaseException:
            self.remove(segment.name)
            self.remove(name)
            raise
        finally:
            self._room.give(segment)
            segment.close()

    def discard(self, segment: Segment) -> None:
        """See `SegmentDriver.discard`."""
        self._room.give(segment)
        segment.close()
        self.remove(segment.name)

    def remove(self, name: str) -> None:
        """See `SegmentDriver.remove`."""
        unlink(name, self._folder)

    def names(self) -> Iterator[str]:
        """See `SegmentDriver.names`."""
        return names(self._prefix, self._folder)

    def open(self, name: str) -> tuple[Segment, str, str]:
        """See `SegmentDriver.open`."""
        stated = parse_name(self._prefix, name)
        if stated is None:
            raise ImageError("it was never finished")
        return self._open(name), *stated

    def _open(self, name: str) -> Segment:
        fd = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, f"it belongs to user {status.st_uid}")
            if stat.S_IMODE(status.st_mode) != _SEALED_MODE:  # what its bytes are now is for a hash to say
                os.fchmod(fd, _SEALED_MODE)
        except BaseException:
            os.close(fd)
            raise
        return Segment(name, status.st_size, fd)

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `SegmentDriver.explain`."""
        return self._full(nbytes) if is_full(error) else error

    def _full(self, nbytes: int, taken_bytes: int = 0) -> NoSpaceError:
        """Return the error, with what is free once the `taken_bytes` of the unfinished segment are given back."""
        held = os.statvfs(self._folder)
        free = held.f_bavail * held.f_frsize + taken_bytes
        return NoSpaceError(
            f"{self._folder} is full: {format_bytes(nbytes)} ({nbytes} bytes) needed, "
            f"{format_bytes(free)} free of {format_bytes(held.f_blocks * held.f_frsize)}; "
            "lower the cpu tier's capacity or remount it larger",
            free,
        )


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
    """Yield all segments under this prefix, finished or not; none where the machine has no such folder.

    Raises OSError if the folder cannot be listed.
    """
    return (name for name in _listed(folder) if name.startswith(f"{prefix}."))


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def unopened_segments(folder: Path = SHM_FOLDER) -> dict[str, list[str]]:
    """Return this user's segments by prefix, without the prefixes of which a process has a segment open.

    A daemon that runs has all of its own open. Raises OSError if the folder cannot be listed.
    """
    opened = _opened_files(folder)
    found: dict[str, list[str]] = {}
    for name in _listed(folder):
        prefix, dot, rest = name.partition(".")
        if dot and rest and _PREFIX.fullmatch(prefix) and _is_own(folder / name):
            found.setdefault(prefix, []).append(name)
    return {prefix: names for prefix, names in found.items() if not any(str(folder / name) in opened for name in names)}


def _is_own(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _opened_files(folder: Path) -> set[str]:
    """Return paths in a folder that processes have open, of those processes that this user may look at."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = os.listdir(process / "fd")
        except OSError:
            continue
        for link in links:
            try:
                target = os.readlink(process / "fd" / link)
            except OSError:
                continue
            if target.startswith(f"{folder}/"):
                found.add(target)
    return found


def file_system_of(folder: Path) -> str:
    """Return the folder's file system type, as mount calls it. Raises ConfigError if the folder is not there."""
    try:
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used for segments: {error.strerror}") from error
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        head, _, tail = line.partition(" - ")
        if head.split()[2] == device:
            return tail.split(" ", 1)[0]
    return "unknown"


def check_folder(folder: Path) -> None:
    """Raise ConfigError if segments in this folder would not be memory, or not be this user's."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is not there: this machine has no shared memory with names; mount a tmpfs there, or start the "
            "daemon with --cpu-memory memfd"
        )
    if file_system_of(folder) != "tmpfs":
        raise ConfigError(
            f"{folder} is not on a tmpfs: segments would be written to disk; mount one there, such as "
            f"`mount -t tmpfs -o huge=within_size,mode=0700,size=8g tmpfs {folder}`"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written by this user; mount it with uid={os.geteuid()}")


def parse_name(prefix: str, name: str) -> tuple[str, str] | None:
    """Return key and digest that a sealed segment's name states, or None for an unfinished or foreign one."""
    parts = name.removeprefix(f"{prefix}.").split(".")
    return (parts[0], parts[1]) if len(parts) == 2 and parts[0] != _UNFINISHED else None
