"""The listening sockets of the attach door: the daemon's own, and one for each tenant.

A tenant's socket lies in a folder of its own under the runtime folder, `tenants/NAME`, and nothing else does: a
container or a namespace that is shown this folder is that tenant, and finds the next daemon there, too.
"""

from __future__ import annotations

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
        path: Where it is made; an old one there is replaced (the daemon's lock says nothing serves it).
        folder: Has the same socket once more; None for none.
        mode: Permissions of the socket: which users may connect at all.
        tenant: Tenant of the clients that come this way; None if it follows from their user.
    """

    def __init__(self, path: Path, *, folder: Path | None, mode: int, tenant: Tenant | None = None) -> None:
        self.tenant = tenant
        self._name = SocketName(path, folder)
        self._mode = mode

    def open(self) -> None:
        """Bind, and let clients in from now on."""
        self._name.clear()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.bind(str(self._name.unpublished))
        self.sock.listen(_BACKLOG)
        self._name.publish(self._mode)

    def close(self) -> None:
        """Let no more clients in, and remove the names."""
        self.sock.close()
        self._name.withdraw()


def listeners(path: Path, mode: int, tenants: Iterable[Tenant] = ()) -> list[Listener]:
    """Return the daemon's own listener at `path`, then each tenant's; remove folders of tenants that are no more.

    Raises ConfigError if a tenant's path is too long for a socket.
    """
    found = [Listener(path, folder=path.with_name(ATTACH_FOLDER), mode=mode)]
    base, folder_mode = path.with_name(TENANTS_FOLDER), stat.S_IMODE(path.parent.stat().st_mode)
    wanted = {tenant.name: tenant for tenant in tenants}
    for old in base.iterdir() if base.is_dir() else ():
        if old.name not in wanted:
            shutil.rmtree(old, ignore_errors=True)
    for name, tenant in wanted.items():
        own = base / name / ATTACH_SOCKET
        if len(bytes(own)) > _LONGEST_PATH:
            raise ConfigError(
                f"runtime_dir {path.parent} is too long for the socket of tenant {name!r}; choose another"
            )
        for folder in (base, own.parent):
            folder.mkdir(exist_ok=True)
            folder.chmod(folder_mode)
        found.append(Listener(own, folder=None, mode=mode, tenant=tenant))
    return found
