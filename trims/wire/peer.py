"""Identity of the process at the other end of a Unix socket, from the kernel. For daemon and keepers.

Clients ask for themselves (`trims_client.connection.channel`): one more module would be a part of each cold start.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_UCRED = struct.Struct("3i")
#: SO_PEERPIDFD, from Linux 6.5 on; Python has no name for it.
_PEERPIDFD = 77
_TICKS = os.sysconf("SC_CLK_TCK")
_TICK_S = 1 / _TICKS
#: Errors of kernels and sandboxes without such a call.
_UNKNOWN = (errno.ENOPROTOOPT, errno.ENOSYS, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected; seen from that process, the one that listens.

    Attributes:
        pid: 0 if it is in another process-id namespace. To look it up in `/proc`, take `PeerProcess`.
    """

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, sock: socket.socket) -> Peer:
        """Return the process connected to this socket (SO_PEERCRED)."""
        return cls(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


class PeerProcess:
    """The process that connected, distinguished from a later one with its number. A context manager.

    What is read of `/proc/PID` is that process's if `check` passes afterwards: a number is given again only once its
    process has ended and was reaped.

    Args:
        sock: Connected.
        peer: The process that connected it.
        age_s: Seconds since it was accepted. A kernel before 6.5 knows only numbers; there, a process that was started
            since then is another one.

    Raises:
        ProcessLookupError: The process has ended, or is in another process-id namespace.
    """

    def __init__(self, sock: socket.socket, peer: Peer, age_s: float = 0.0) -> None:
        self.pid = peer.pid
        self._fd, self._started = -1, 0
        if self.pid == 0:
            raise ProcessLookupError(errno.ESRCH, "the process that connected cannot be seen from here")
        try:
            self._fd = sock.getsockopt(socket.SOL_SOCKET, _PEERPIDFD)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise self._ended() from error
            self._started = self._start()
            accepted_s = time.clock_gettime(time.CLOCK_BOOTTIME) - age_s
            if self._started > (accepted_s + _TICK_S) * _TICKS:
                raise self._ended() from error
        else:
            os.set_inheritable(self._fd, False)
            try:
                self.check()
            except OSError:
                self.close()
                raise

    def check(self) -> None:
        """Raise ProcessLookupError if the process has ended and another one may have its number."""
        if self._fd < 0:
            if self._start() != self._started:
                raise self._ended()
            return
        try:
            signal.pidfd_send_signal(self._fd, 0)
        except PermissionError:
            return  # of another user, and there
        except ProcessLookupError as error:
            raise self._ended() from error

    def take(self) -> int:
        """Return a descriptor of the process (pidfd), which is the caller's. Raises OSError where there is none."""
        self.check()
        if self._fd < 0:
            return os.pidfd_open(self.pid)
        fd, self._fd = self._fd, -1
        return fd

    def _start(self) -> int:
        """Return when the process with this number was started, in ticks since the machine was."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[19])
        except FileNotFoundError as error:
            raise self._ended() from error

    def _ended(self) -> ProcessLookupError:
        return ProcessLookupError(errno.ESRCH, f"process {self.pid} has connected and ended")

    def close(self) -> None:
        """Let go of the process. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
