"""Calls on the attach door's socket: connect, send and receive, each with its own time limit.

The timeout of a Python socket applies to the whole socket: one thread's limit for sending would also apply to another
thread that reads. The options SO_SNDTIMEO and SO_RCVTIMEO apply to one direction only.

`until_s` is a time on the monotonic clock in seconds; None means no limit.
"""

from __future__ import annotations

import _socket as socket
import errno
import os
import struct
import time

from trims.core.errors import CapacityError, DaemonAwayError
from trims.wire.address import ATTACH_SOCKET, TENANTS_FOLDER, why_too_long

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque

#: Seconds to wait for a connection. A stopped daemon accepts none, and once its queue is full, connecting blocks.
_CONNECT_S = 5.0
_READ_BYTES = 64 << 10
_MAX_FDS = 64
_UCRED = struct.Struct("3i")
_FD = struct.Struct("i")
_TIMEVAL = struct.Struct("ll")
_ANCILLARY = socket.CMSG_SPACE(_MAX_FDS * _FD.size)
#: Mark among received descriptors for others of the message that this process had no room for.
LOST = -2


def lacks_descriptors(error: BaseException) -> bool:
    """Return whether an error came of a lack of descriptors: of this process, or of the whole machine."""
    return _errno(error) in (errno.EMFILE, errno.ENFILE)


def explained(error: BaseException, what: str) -> CapacityError:
    """Return the error for a lack of descriptors, which begins with `what`. Import nothing: that would take one."""
    whose = "this machine has no more open files to give (`sysctl fs.file-max`)"
    if _errno(error) == errno.EMFILE:
        whose = f"this process may have {os.sysconf('SC_OPEN_MAX')} open files"
    return CapacityError(f"{what}: no descriptor left: {whose}; close some, or raise the limit (`ulimit -n`)")


def _errno(error: BaseException) -> int | None:
    cause = error if isinstance(error, OSError) else error.__cause__
    return cause.errno if isinstance(cause, OSError) else None


def no_descriptors() -> OSError:
    """Return the error that the kernel would give, had it been asked for the descriptors that did not arrive."""
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def connect(sock: socket.socket, path: str) -> None:
    """Connect, or close the socket and raise DaemonAwayError naming the path."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(_CONNECT_S))
    try:
        sock.connect(path)
    except BlockingIOError as error:
        sock.close()
        raise DaemonAwayError(
            f"the daemon at {path} accepted no connection within {_CONNECT_S:g} s; it is stopped or hangs"
        ) from error
    except OSError as error:
        sock.close()
        why = (
            why_too_long(os.path.dirname(path))
            or _unknown_tenant(path)
            or (
                f"no daemon answers at {path} ({error.strerror}); start one with `trims serve`, or point "
                f"TRIMS_RUNTIME_DIR at the folder of one that runs"
            )
        )
        raise DaemonAwayError(why) from error


def _unknown_tenant(path: str) -> str:
    """Return what is wrong if a daemon is there, but not the tenant whose socket the path names; else empty text."""
    tenants, _, name = os.path.dirname(path).rpartition("/")
    folder, _, last = tenants.rpartition("/")
    if last != TENANTS_FOLDER or os.path.exists(path) or not os.path.exists(f"{folder}/{ATTACH_SOCKET}"):
        return ""
    return (
        f"the daemon in {folder} knows no tenant {name!r}; name it in the file of `trims serve --tenants`, and restart"
    )


def peer_uid(sock: socket.socket) -> int:
    """Return the user id of the listening process, as the kernel reports it."""
    return int(_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1])


def send(sock: socket.socket, data: bytes, until_s: float | None) -> bool:
    """Send all. Return False if the socket had no room before `until_s`: nothing was sent. For one thread at a time.

    The kernel takes a message of the attach door as a whole or not at all. If it ever took a part only, the rest could
    not be sent later without it, and OSError is raised.
    """
    at, how = 0, socket.MSG_DONTWAIT
    while at < len(data):
        try:
            at += sock.send(data[at:], socket.MSG_NOSIGNAL | how)
        except BlockingIOError as error:
            if how and not passed(until_s):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(left(until_s)))
                how = 0
            elif at:
                raise OSError(f"half a message was sent: {error}") from error
            else:
                return False
    return True


def receive(sock: socket.socket, fds: deque[int], how: int, until_s: float | None) -> bytes:
    """Read data, waiting for it until `until_s` unless `how` has MSG_DONTWAIT. For one thread at a time.

    Descriptors that arrive with the data are appended to `fds`, and `LOST` behind them if there were more.

    Raises:
        BlockingIOError: No data arrived.
        ConnectionResetError: The connection has ended.
    """
    if not how & socket.MSG_DONTWAIT:
        # Not the socket's own timeout: that would apply to other threads' sends, and to the next MSG_DONTWAIT read.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(left(until_s)))
    data, ancillary, flags, _ = sock.recvmsg(_READ_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC | how)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(fd for (fd,) in _FD.iter_unpack(payload[: len(payload) // _FD.size * _FD.size]))
    if flags & socket.MSG_CTRUNC:
        fds.append(LOST)
    if not data:
        raise ConnectionResetError("the daemon closed the connection")
    return data


def passed(until_s: float | None) -> bool:
    """Return whether this time on the monotonic clock has passed; False for None."""
    return until_s is not None and time.monotonic() >= until_s


def left(until_s: float | None) -> float | None:
    """Return the seconds until this time, at least a millisecond; None for None."""
    return None if until_s is None else max(0.001, until_s - time.monotonic())


def _timeval(seconds: float | None) -> bytes:
    """Return the value for SO_RCVTIMEO and SO_SNDTIMEO, where zero means no limit."""
    return _TIMEVAL.pack(*divmod(int((seconds or 0) * 1e6), 1_000_000))
