"""Messages between the supervisor, its templates and its predictors: JSON objects in packets, with descriptors.

The sockets are of type SOCK_SEQPACKET: a packet is a message, whole or not at all. Bytes of tensors travel in arenas.
"""

from __future__ import annotations

import json
import os
import socket
from array import array
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, LostPeerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.wire.frames import Message

#: Bytes of one packet, at most. The kernel's buffers hold more.
MOST_BYTES = 96 << 10
_MOST_DESCRIPTORS = 4
_INT = array("i")


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets; programs that are executed do not inherit them."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message. Raises BadMessageError if it is too long, LostPeerError if the other side is gone."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MOST_BYTES:
        raise BadMessageError(f"a message of {len(data)} bytes is too long; {MOST_BYTES} are the most")
    try:
        socket.send_fds(sock, [data], list(fds))
    except (BrokenPipeError, ConnectionError) as error:
        raise LostPeerError(f"the other process is gone: {error}") from error


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors; None once the other side is gone. Raises BadMessageError."""
    try:
        # Not socket.recv_fds: it ignores the flags.
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INT.itemsize)
        data, ancillary, flags, _ = sock.recvmsg(MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    fds = [fd for _, kind, packed in ancillary if kind == socket.SCM_RIGHTS for fd in _unpacked(packed)]
    if not data:
        return None
    try:
        if flags & socket.MSG_CTRUNC and len(fds) < _MOST_DESCRIPTORS:
            raise BadMessageError("a message lost its descriptors: this process has none left (`ulimit -n`)")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise BadMessageError(f"a message is longer than {MOST_BYTES} bytes, or brings too many descriptors")
        message = json.loads(data)
        if not isinstance(message, dict):
            raise BadMessageError(f"a message is a {type(message).__name__}; an object is expected")
    except (ValueError, RecursionError) as error:
        close_all(fds)
        raise BadMessageError(f"a message is not JSON: {error}") from error
    except BaseException:
        close_all(fds)
        raise
    return message, fds


def _unpacked(packed: bytes) -> list[int]:
    return list(array(_INT.typecode, packed[: len(packed) - len(packed) % _INT.itemsize]))


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for fd in fds:
        os.close(fd)
