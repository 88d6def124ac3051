"""Which file system a path lies on, told from the mount table alone: the path itself is not looked at.

A look at a file may hang with its file system (a dead NFS server). The table of mounts is the kernel's memory and never
hangs, so looks can be kept apart by mount point before any is made.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TABLE = "/proc/self/mountinfo"
_RENEW_S = 1.0
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mounts:
    """The mount table of this process, read again at most once a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[str] = []
        self._read_at_s = 0.0

    def point_of(self, path: str) -> str:
        """The longest mount point that contains an absolute path, by its name: symbolic links are not followed."""
        return next((point for point in self._now() if _contains(point, path)), "/")

    def _now(self) -> list[str]:
        with self._lock:
            if not self._points or time.monotonic() - self._read_at_s > _RENEW_S:
                with open(_TABLE, encoding="utf-8", errors="surrogateescape") as table:
                    points = {_plain(line.split(" ", 5)[4]) for line in table}
                self._points = sorted(points, key=len, reverse=True)
                self._read_at_s = time.monotonic()
            return self._points


def _plain(text: str) -> str:
    """Blanks and the like stand in octal."""
    return _ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), text)


def _contains(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


_mounts = Mounts()


def mount_of(path: Path) -> str:
    """The mount point a path lies under."""
    return _mounts.point_of(os.path.normpath(os.path.abspath(path)))
