"""The listening sockets of the attach door: the daemon's own, and one for each tenant.

A tenant's socket lies in a folder of its own under the runtime folder, `tenants/NAME`, and nothing else does: a
container or a namespace that is shown this folder is that tenant, and finds the next daemon there, too.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError
from trims.daemon.sockets import SocketName
from trims.wire.address import ATTACH_FOLDER, ATTACH_SOCKET, TENANTS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trims.tenants import Tenant

_BACKLOG = 512
#: Longest path of a socket, in bytes, that the kernel takes.
_LONGEST_PATH = 107


class Listener:
    """A socket that clients connect to.

    Args:
        path: Where it is made; an old one there is replaced (the daemon's lock says nothing serves it). Folders between
            it and the runtime folder are made, as open to others as that is.
        runtime_dir: The daemon's folder of sockets.
        mode: Permissions of the socket: which users may connect at all.
        tenant: Tenant of the clients that come this way; None if it follows from their user.
    """

    def __init__(self, path: Path, runtime_dir: Path, *, mode: int, tenant: Tenant | None = None) -> None:
        self.tenant = tenant
        self.name = SocketName(path)
        self._runtime_dir = runtime_dir
        self._mode = mode
        self._new: socket.socket | None = None

    def open(self) -> None:
        """Bind, and let clients in from now on."""
        self.sock = self._bound()

    def bind_again(self) -> None:
        """Have clients that look for the name find a new socket, which `take_new` puts in place of the old one."""
        if self._new is None:
            self._new = self._bound()

    def take_new(self) -> None:
        """Close the old socket, and let clients in by the new one from now on."""
        self.sock.close()
        assert self._new is not None
        self.sock, self._new = self._new, None

    def _bound(self) -> socket.socket:
        path, folder_mode = self.name.path, stat.S_IMODE(self._runtime_dir.stat().st_mode)
        for folder in reversed([each for each in path.parents if self._runtime_dir in each.parents]):
            folder.mkdir(exist_ok=True)
            folder.chmod(folder_mode)
        self.name.clear()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            os.fchmod(sock.fileno(), self._mode)  # which the file has from its first moment on, less the umask
            sock.bind(str(path))
            sock.listen(_BACKLOG)
            self.name.bound(self._mode)
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """Let no more clients in, and remove the name."""
        self.name.withdraw()  # first: while the socket is open, no other file has its number
        for sock in (self.sock, self._new):
            if sock is not None:
                sock.close()


def listeners(path: Path, mode: int, tenants: Iterable[Tenant] = ()) -> list[Listener]:
    """Return the daemon's own listeners, then each tenant's; remove folders of tenants that are no more.

    The daemon's own are at `path` and once more in a folder: a folder that is mounted elsewhere shows the socket of the
    next daemon, too; a socket that is mounted would stay the old one.

    Raises ConfigError if a tenant's path is too long for a socket.
    """
    runtime_dir = path.parent
    found = [Listener(each, runtime_dir, mode=mode) for each in (path, runtime_dir / ATTACH_FOLDER / ATTACH_SOCKET)]
    base = runtime_dir / TENANTS_FOLDER
    wanted = {tenant.name: tenant for tenant in tenants}
    for old in base.iterdir() if base.is_dir() else ():
        if old.name not in wanted:
            shutil.rmtree(old, ignore_errors=True)
    for name, tenant in wanted.items():
        own = base / name / ATTACH_SOCKET
        if len(bytes(own)) > _LONGEST_PATH:
            raise ConfigError(
                f"runtime_dir {runtime_dir} is too long for the socket of tenant {name!r}; choose another"
            )
        found.append(Listener(own, runtime_dir, mode=mode, tenant=tenant))
    return found
