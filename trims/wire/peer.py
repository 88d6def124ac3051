"""Identity of the process at the other end of a Unix socket, from the kernel. For daemon and keepers.

Clients ask for themselves (`trims_client.connection.channel`): one more module would be a part of each cold start.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected; seen from that process, the one that listens.

    Attributes:
        pid: 0 if it is in another process-id namespace.
    """

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, sock: socket.socket) -> Peer:
        """Return the process connected to this socket (SO_PEERCRED)."""
        return cls(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))
