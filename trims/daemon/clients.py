"""Clients of the attach door: who is at the other end, what a session is, and what a grant looks like to it."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, PermissionDeniedError
from trims.store.resolve import FILE_PREFIX
from trims.wire.frames import Decoder, Message

if TYPE_CHECKING:
    import socket

    from trims.store.asks import Granted


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel tells it (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


@dataclass(slots=True, eq=False)
class Unsent:
    """What is left of a message, and the descriptor that goes with its first byte.

    Attributes:
        fd: The store's, unless `own`; -1 if there is none.
        own: It was duplicated: the store's may be closed by then, and its number be another file's.
    """

    data: bytes
    fd: int = -1
    own: bool = False

    def keep(self) -> None:
        """It has to wait. Raises OSError if this process has no descriptor left."""
        if self.fd >= 0 and not self.own:
            self.fd, self.own = os.dup(self.fd), True

    def let_go(self) -> None:
        """The descriptor has left, or never will. Idempotent."""
        if self.own:
            os.close(self.fd)
        self.fd, self.own = -1, False


@dataclass(slots=True, eq=False)
class Session:
    """One connected client.

    Attributes:
        process_fd: Of the process (pidfd), if it was granted memory that counts as read until the process is gone.
    """

    number: int
    sock: socket.socket
    peer: Peer
    agent: str = ""
    greeted: bool = False
    decoder: Decoder = field(default_factory=Decoder)
    unsent: deque[Unsent] = field(default_factory=deque)
    pending: int = 0
    partial_since_s: float = 0.0
    writing: bool = False
    process_fd: int = -1
    began_at_s: float = field(default_factory=time.time)
    over: bool = False


def grant_message(request_id: int, granted: Granted) -> Message:
    """The answer to a request that was granted."""
    return {
        "id": request_id,
        "lease": granted.lease,
        "key": granted.key,
        "place": str(granted.place),
        "generation": granted.generation,
        "nbytes": granted.nbytes,
        "digest": granted.digest,
        "warm": granted.warm,
        **({"device": granted.export.device} if granted.export else {}),
    }


def file_name(peer: Peer, path: str) -> str:
    """The store's name for a file. Others' files are not opened on somebody's word: the daemon may see more than he."""
    if not os.path.isabs(path):
        raise CallerError(f"{path!r} is not absolute; the daemon does not know your working folder")
    if peer.uid not in (0, os.geteuid()):
        raise PermissionDeniedError(
            f"user {peer.uid} may open registered models of this daemon, but no files by path; it runs as user "
            f"{os.geteuid()}"
        )
    return FILE_PREFIX + os.path.normpath(path)
