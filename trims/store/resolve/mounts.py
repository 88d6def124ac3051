"""Mount points: which file system a path lies on, by the mount table alone; the path itself is not looked at.

A look at a file may hang with its file system (a dead NFS server). The table of mounts is the kernel's memory and never
hangs, so looks can be kept apart by mount point before any is made.
"""

from __future__ import annotations

import os
import re
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TABLE = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mounts:
    """Mount table of this process, read again when it has changed: the kernel reports that on its open file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: frozenset[str] = frozenset()
        self._changes: select.poll | None = None

    def point_of(self, path: str) -> str:
        """Return the longest mount point that contains an absolute path by name: symbolic links are not followed."""
        with self._lock:
            if self._is_stale():
                self._read()
            return _longest(self._points, path)

    def point_of_now(self, path: str) -> str | None:
        """Return the mount point of a path; None if the table must be read for it, or is being read. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return None if self._is_stale() else _longest(self._points, path)
        finally:
            self._lock.release()

    def _is_stale(self) -> bool:
        """Return whether the table has changed. The kernel reports a change once, so forget the known table with it."""
        if self._changes is None or self._changes.poll(0):
            self._points = frozenset()
        return not self._points

    def _read(self) -> None:
        if self._changes is None:  # before the table is read: so no change is missed
            self._changes = select.poll()
            self._changes.register(os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC), select.POLLPRI)
            self._changes.poll(0)
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            self._points = frozenset(_plain(line.split(" ", 5)[4]) for line in table)


def _plain(text: str) -> str:
    """Decode a path of the mount table, where blanks and the like stand in octal."""
    return _ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), text)


def _longest(points: frozenset[str], path: str) -> str:
    while path not in points and path != "/":
        path = path[: path.rfind("/")] or "/"
    return path


_mounts = Mounts()


def mount_of(path: Path) -> str:
    """Return the mount point a path lies under. Reads the mount table if that has changed."""
    return _mounts.point_of(os.path.normpath(os.path.abspath(path)))


def mount_of_now(path: Path) -> str | None:
    """Return the mount point of an absolute path; None if the table must be read for it. Never blocks."""
    return _mounts.point_of_now(os.path.normpath(path))
