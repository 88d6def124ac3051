"""A client that sends messages of the attach door as they are: many at once, and without waiting for answers.

`trims.connect` waits for each answer, so it can neither flood a daemon nor be one of thousands in one process.
"""

from __future__ import annotations

import array
import os
import socket
from typing import TYPE_CHECKING

from trims.wire.answers import PROTOCOL_VERSION
from trims.wire.frames import Decoder, Message, encode

if TYPE_CHECKING:
    from typing_extensions import Self

_READ_BYTES = 64 << 10
#: Descriptors that may come with one read.
_MOST_FDS = 64
HELLO: Message = {"op": "hello", "protocol": PROTOCOL_VERSION, "agent": "bench"}


class RawClient:
    """One connection; a context manager.

    Args:
        path: The attach door's socket. Raises OSError if no daemon listens there.
        timeout_s: Longest time one read or write waits; None for ever.
    """

    def __init__(self, path: str, timeout_s: float | None = 10.0) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self._decoder = Decoder()
        try:
            self.sock.connect(path)  # without a time limit, which would be an error where others wait in line
            self.sock.settimeout(timeout_s)
        except OSError:
            self.sock.close()
            raise

    def send(self, *messages: Message) -> None:
        """Send all at once. A daemon that has hung up is found by reading: it may have said why."""
        try:
            self.sock.sendall(b"".join(map(encode, messages)), socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self) -> list[Message]:
        """Return the messages that have come; wait if there are none. Descriptors are closed: nothing is mapped.

        Raises ConnectionError if the daemon has hung up, TimeoutError if nothing comes.
        """
        room = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)
        data, ancillary, _, _ = self.sock.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
                for fd in fds:
                    os.close(fd)
        if not data:
            raise ConnectionError("the daemon hung up")
        return self._decoder.feed(data)

    def answer(self) -> Message:
        """The next message with an id, if nothing else is on its way. Raises as `receive`."""
        while True:
            for message in self.receive():
                if message.get("id") is not None:
                    return message

    def close(self) -> None:
        """End the session."""
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
