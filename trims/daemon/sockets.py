"""The names of a daemon's sockets: bound where clients look for them, and removed only if they are still ours."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SocketName:
    """The name of a socket in a folder that this daemon has locked.

    The socket is bound at its final name: programs that remove old files from /tmp spare sockets that the kernel has in
    use, and know them by the name they were bound to. A daemon whose runtime folder was removed and made again by
    another one does not remove the other's sockets when it ends.

    Args:
        path: The name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None

    def clear(self) -> None:
        """Make room for the socket in place of what is left of an earlier daemon, which the lock says has ended."""
        self.path.unlink(missing_ok=True)

    def bound(self, mode: int) -> None:
        """Give the socket that was bound its permissions, and remember which it is."""
        self.path.chmod(mode)
        self._identity = self._found()

    def is_there(self) -> bool:
        """Return whether clients find this socket by its name. Its times are renewed, so that it never counts as old.

        Some programs remove what is old although it is in use.
        """
        if self._identity is None or self._found() != self._identity:
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return True

    def withdraw(self) -> None:
        """Remove the name, unless it is gone or another daemon's by now. Idempotent."""
        if self._identity is not None and self._found() == self._identity:
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def others_spared(self) -> Iterator[None]:
        """Keep another daemon's socket of this name over a block that removes whatever has it, as gRPC does."""
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        found = self._found()
        kept = found is not None and found != self._identity
        if kept:
            os.link(self.path, aside)
        try:
            yield
        finally:
            if kept:
                aside.replace(self.path)

    def _found(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino
