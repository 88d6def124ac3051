"""Connections of the attach door: what a connected client has sent, and what is on its way to it.

Not covered: when a connection is read, written and ended (`attach_door`), what it asks for (`requests`).
"""

from __future__ import annotations

import array
import logging
import os
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.wire.frames import Decoder
from trims.wire.peer import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.tenants import Tenant
    from trims.wire.frames import Message
    from trims.wire.peer import Peer

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Unsent:
    """Unsent rest of a message, and the descriptors that go with its first byte.

    Attributes:
        fds: The store's, until they are in `own`.
        own: Duplicates of them: the store's may be closed by then, and their numbers be other files'.
    """

    data: bytes
    fds: Sequence[int] = ()
    own: list[int] = field(default_factory=list)

    def keep(self) -> None:
        """Duplicate the descriptors, because the message has to wait. Raises OSError if this process has none left."""
        for fd in self.fds[len(self.own) :]:
            self.own.append(os.dup(fd))
        self.fds = self.own

    def let_go(self) -> None:
        """Close the duplicates: the descriptors have left, or never will. Idempotent."""
        self.fds = ()
        while self.own:
            os.close(self.own.pop())


@dataclass(slots=True, eq=False)
class Connection:
    """One connected client: its socket is its session.

    Attributes:
        inbox: Messages that were read and not handled yet: a connection has a few handled in each turn.
        interest: Events its socket is polled for.
        tenant: Tenant of the client; None for the operator.
        process_fd: Pidfd of the process, if it was granted memory that counts as read until the process is gone.
    """

    number: int
    sock: socket.socket
    peer: Peer
    tenant: Tenant | None = None
    agent: str = ""
    greeted: bool = False
    decoder: Decoder = field(default_factory=Decoder)
    inbox: deque[Message] = field(default_factory=deque)
    queued: bool = False
    unsent: deque[Unsent] = field(default_factory=deque)
    pending: int = 0
    partial_since_s: float = 0.0
    interest: int = 0
    process_fd: int = -1
    began_at_s: float = field(default_factory=time.time)
    over: bool = False

    def flush(self) -> bool:
        """Send what is unsent.

        Return False if the socket takes no more just now. Raises OSError if the client is gone.
        """
        while self.unsent:
            first = self.unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", first.fds))] if first.fds else []
            try:
                sent = self.sock.sendmsg([first.data], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            first.let_go()  # it left with the first byte
            first.data = first.data[sent:]
            if not first.data:
                self.unsent.popleft()
        return True

    def watch_process(self) -> bool:
        """Count the session until its process is gone: closing the socket does not close its mappings.

        Return False if the process cannot be watched: it is in another namespace (and shows as 0), or has ended.
        """
        if self.process_fd < 0:
            try:
                with PeerProcess(self.sock, self.peer, time.time() - self.began_at_s) as process:
                    self.process_fd = process.take()
            except OSError as error:
                log.warning("process %d cannot be watched: %s", self.peer.pid, error)
        return self.process_fd >= 0

    def unwatch_process(self) -> None:
        """Stop watching: the process is gone, or the daemon ends. Idempotent."""
        if self.process_fd >= 0:
            os.close(self.process_fd)
            self.process_fd = -1
