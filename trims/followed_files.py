"""Files that are taken over while a process runs: tokens, tenants, certificates.

A change counts once it has rested for one look, so that a file is not read while it is written. A file may be written
in place, renamed over, or lie behind a link that is switched, as Kubernetes does. What is read of it stays in use until
the next good content: a broken file is reported once for each change.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
#: Seconds between two looks.
LOOK_S = 1.0
#: Bytes that a followed file may have.
MOST_BYTES = 4 << 20

_Mark = tuple[int, ...] | None


class FollowedFiles:
    """Files that are read together.

    Args:
        what: Names them in the log.
        paths: Paths of the files.
        read: Reads and checks them, and returns what takes them over. Raises TrimsError, OSError or ValueError.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], Callable[[], None]]) -> None:
        self._what, self._paths, self._read = what, tuple(paths), read
        self._seen: tuple[_Mark, ...] = ()
        self._taken: tuple[_Mark, ...] = ()

    def look(self) -> Callable[[], None] | None:
        """Return what takes over files that changed; None if none has, or they cannot be used. It may block.

        The first look reads them again: they may have changed since they were read to start with.
        """
        marks = tuple(map(_mark, self._paths))
        rests, self._seen = marks == self._seen or not self._taken, marks
        if marks == self._taken or not rests:
            return None
        first, self._taken = not self._taken, marks
        try:
            take = self._read()
        except (TrimsError, OSError, ValueError) as error:
            log.warning("%s changed and cannot be used, so what it held before counts on: %s", self._what, error)
            return None
        log.log(logging.DEBUG if first else logging.INFO, "%s changed and is taken over", self._what)
        return take


def read_whole(path: Path, what: str) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a small file, without a wait for a writer as at a FIFO.

    Raises ConfigError where it is no file, cannot be read or has more than `MOST_BYTES`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"no {what} can be read from {path}: it is no file")
            with open(fd, "rb", closefd=False) as file:
                found = file.read(MOST_BYTES + 1)
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no {what} can be read from {path}: {error}") from error
    if len(found) > MOST_BYTES:
        raise ConfigError(f"no {what} can be read from {path}: it has more than {MOST_BYTES} bytes")
    return found, status


def _mark(path: Path) -> _Mark:
    """Return what differs once a file is another one or has other content; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
