"""The names of a daemon's sockets: each appears at once, when it can be served, and goes only if it is still ours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class SocketName:
    """A socket is bound at `unpublished`; `publish` gives it its name, in place of what is left of an earlier daemon.

    So a client never finds a socket that is not served yet, or has not its permissions yet. And a daemon whose runtime
    folder was removed and made again by another one does not remove the other's sockets when it ends.

    Args:
        path: The name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: No longer than the name itself: the kernel takes about a hundred letters.
        self.unpublished = path.with_name(f"{path.name[0]}{os.getpid()}.new")
        self._identity: tuple[int, int] | None = None

    def clear(self) -> None:
        """Remove what a process of the same number left when it was killed."""
        self.unpublished.unlink(missing_ok=True)

    def publish(self, mode: int) -> None:
        """Give the bound socket its permissions and its name."""
        self.unpublished.chmod(mode)
        status = self.unpublished.stat()
        self._identity = (status.st_dev, status.st_ino)
        self.unpublished.replace(self._path)

    def withdraw(self) -> None:
        """Remove the name, unless it is gone or another daemon's by now. Idempotent."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        if (status.st_dev, status.st_ino) == self._identity:
            self._path.unlink(missing_ok=True)
