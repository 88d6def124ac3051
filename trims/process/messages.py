"""Messages between a process and its children: JSON objects in packets, with descriptors.

The sockets are of type SOCK_SEQPACKET: a packet is a message, whole or not at all. A message that is longer than a
packet travels in a file in memory, between those who have agreed on that.
"""

from __future__ import annotations

# The C module under `socket`, whose wrapper takes longer to import than a program takes to start from a template.
import _socket as socket
import fcntl
import json
import os
from array import array

from trims.core.errors import BadMessageError, LostPeerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket as wrapper
    from collections.abc import Sequence

    from trims.wire.frames import Message

#: Bytes of one packet, at most. The kernel's buffers hold more.
MOST_BYTES = 96 << 10
_MOST_DESCRIPTORS = 4
_INT = array("i")
#: Field of a packet whose message is in the file that comes with it: the length.
_IN_FILE = "message_in_file"


def pair() -> tuple[wrapper.socket, wrapper.socket]:
    """Return two connected sockets; programs that are executed do not inherit them."""
    import socket

    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(
    sock: wrapper.socket | socket.socket, message: Message, fds: Sequence[int] = (), *, long: bool = False
) -> None:
    """Send one message.

    Args:
        fds: Descriptors to send along.
        long: Send a message that is too long for a packet in a file; the receiver must expect that.

    Raises BadMessageError if it is too long, LostPeerError if the other side is gone.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) <= MOST_BYTES:
        _send(sock, data, fds)
        return
    if not long:
        raise BadMessageError(f"a message of {len(data)} bytes is too long; {MOST_BYTES} are the most")
    with open(os.memfd_create("trims-message", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(data)
        _send(sock, json.dumps({_IN_FILE: len(data)}).encode(), [*fds, file.fileno()])


def _send(sock: wrapper.socket | socket.socket, data: bytes, fds: Sequence[int]) -> None:
    try:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array(_INT.typecode, fds))] if fds else []
        sock.sendmsg([data], rights)
    except (BrokenPipeError, ConnectionError) as error:
        raise LostPeerError(f"the other process is gone: {error}") from error


def receive(
    sock: wrapper.socket | socket.socket, *, most_fds: int = _MOST_DESCRIPTORS, long_bytes: int = 0
) -> tuple[Message, list[int]] | None:
    """Return the next message and its descriptors, which are the caller's; None once the other side is gone.

    Args:
        most_fds: Descriptors that a message may bring.
        long_bytes: Bytes of a message that may come in a file; 0 if none may.

    Raises BadMessageError.
    """
    try:
        # Not socket.recv_fds: it ignores the flags.
        data, ancillary, flags, _ = sock.recvmsg(
            MOST_BYTES, socket.CMSG_SPACE(most_fds * _INT.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return None
    fds = [fd for _, kind, packed in ancillary if kind == socket.SCM_RIGHTS for fd in _unpacked(packed)]
    if not data:
        return None
    try:
        if flags & socket.MSG_CTRUNC and len(fds) < most_fds:
            raise BadMessageError("a message lost its descriptors: this process has none left (`ulimit -n`)")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise BadMessageError(f"a message is longer than {MOST_BYTES} bytes, or brings too many descriptors")
        message = _parsed(data)
        if long_bytes and fds and _IN_FILE in message:
            message = _parsed(_in_file(fds, message[_IN_FILE], long_bytes))
    except BaseException:
        close_all(fds)
        raise
    return message, fds


def _parsed(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"a message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadMessageError(f"a message is a {type(message).__name__}; an object is expected")
    return message


def _in_file(fds: list[int], nbytes: object, most_bytes: int) -> bytes:
    """Return the bytes in the last descriptor, which is taken away. Only a file in memory is read: others may block."""
    if type(nbytes) is not int or not 0 <= nbytes <= most_bytes:
        raise BadMessageError(f"a message of {nbytes!r:.40} bytes is too long; {most_bytes} are the most")
    fd = fds.pop()
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        return os.pread(fd, nbytes, 0)
    except OSError as error:
        raise BadMessageError(f"a message is in a file that cannot be read: {error}") from error
    finally:
        os.close(fd)


def _unpacked(packed: bytes) -> list[int]:
    return list(array(_INT.typecode, packed[: len(packed) - len(packed) % _INT.itemsize]))


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for fd in fds:
        os.close(fd)
