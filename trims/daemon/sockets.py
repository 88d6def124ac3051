"""The names of a daemon's sockets: each appears at once, when it can be served, and goes only if it is still ours."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class SocketName:
    """A socket is bound at `unpublished`; `publish` gives it its name, in place of what is left of an earlier daemon.

    So a client never finds a socket that is not served yet, or has not its permissions yet. And a daemon whose runtime
    folder was removed and made again by another one does not remove the other's sockets when it ends.

    Args:
        path: The name.
        folder: Where the socket gets the same name once more; made if it is not there. A folder that is mounted
            elsewhere shows the socket of the next daemon, too; a socket that is mounted would stay the old one.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self._path = path
        self._folder = folder
        self._names = [path] if folder is None else [path, folder / path.name]
        #: Path of the socket before it is published: no longer than the name, as the kernel takes about a hundred
        #: letters.
        self.unpublished = path.with_name(f"{path.name[0]}{os.getpid()}.new")
        self._identity: tuple[int, int] | None = None

    def clear(self) -> None:
        """Remove what a process of the same number left when it was killed."""
        self.unpublished.unlink(missing_ok=True)
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            self._folder.chmod(stat.S_IMODE(self._folder.parent.stat().st_mode))
            (self._folder / self.unpublished.name).unlink(missing_ok=True)

    def publish(self, mode: int) -> None:
        """Give the bound socket its permissions and its name."""
        self.unpublished.chmod(mode)
        status = self.unpublished.stat()
        self._identity = (status.st_dev, status.st_ino)
        if self._folder is not None:
            link = self._folder / self.unpublished.name
            link.hardlink_to(self.unpublished)
            link.replace(self._folder / self._path.name)
        self.unpublished.replace(self._path)

    def withdraw(self) -> None:
        """Remove the names, unless they are gone or another daemon's by now. Idempotent."""
        for name in self._names:
            try:
                status = name.stat()
            except FileNotFoundError:
                continue
            if (status.st_dev, status.st_ino) == self._identity:
                name.unlink(missing_ok=True)
