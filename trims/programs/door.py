"""A session at the attach door that asks one question at a time: of `trims exec`, and of a template's host."""

from __future__ import annotations

# The C module under `socket`: see `trims.process.messages`.
import _socket as socket
import itertools

from trims.core.errors import LostPeerError
from trims.wire.answers import PROTOCOL_VERSION, raise_if_error
from trims.wire.frames import Decoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trims.wire.frames import Message

_READ_BYTES = 64 << 10


class Door:
    """Session with the daemon.

    Args:
        sock: Connected to the attach door.
        greeted: Whether the session has begun already, in the process that this one was forked from.
        wait_s: Seconds to wait for each answer.
    """

    def __init__(self, sock: Any, *, greeted: bool = False, wait_s: float = 2.0) -> None:
        self.sock = sock
        self._wait_s = wait_s
        self._decoder = Decoder()
        self._numbers = itertools.count(1)
        if not greeted:
            self._exchange({"op": "hello", "protocol": PROTOCOL_VERSION, "agent": "trims exec"})

    @classmethod
    def open(cls, path: str, wait_s: float = 2.0) -> Door:
        """Connect. Raises TrimsError if the daemon refuses, OSError if there is none."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(wait_s)
            sock.connect(path)
            return cls(sock, wait_s=wait_s)
        except BaseException:
            sock.close()
            raise

    def ask(self, message: Message) -> Message:
        """Return the answer to a request. Raises TrimsError, OSError."""
        return self._exchange({**message, "id": next(self._numbers)})

    def _exchange(self, message: Message) -> Message:
        self.sock.settimeout(self._wait_s)
        self.sock.sendall(encode(message))
        while True:
            data = self.sock.recv(_READ_BYTES)
            if not data:
                raise LostPeerError("the daemon has ended the session")
            for answer in self._decoder.feed(data):
                return raise_if_error(answer)

    def has_ended(self) -> bool:
        """Return whether the daemon has ended the session; for a socket that is readable outside of a request."""
        try:
            self.sock.settimeout(0)
            return not self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """End the session. Idempotent."""
        self.sock.close()
