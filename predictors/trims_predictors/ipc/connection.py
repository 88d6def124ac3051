"""The supervisor's end of a socket to a template or a predictor, in the event loop; nothing here waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, LostPeerError
from trims.process import messages

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from trims.wire.frames import Message


class Peer:
    """Connection that passes each message and its descriptors to `heard`, which must close them.

    Calls `lost` once when the connection is over. A peer that sends what is no message is lost, too: its socket is
    closed.
    """

    def __init__(
        self, sock: socket.socket, heard: Callable[[Message, list[int]], None], lost: Callable[[str], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._heard = heard
        self._lost = lost
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send without waiting. Raises LostPeerError if it is over, or if the peer does not read what it is sent."""
        if not self._open:
            raise LostPeerError("the other process is gone")
        try:
            messages.send(self._sock, message, fds)
        except BlockingIOError as error:
            raise LostPeerError("the other process does not read its messages") from error

    def _read(self) -> None:
        try:
            received = messages.receive(self._sock)
        except BlockingIOError:
            return
        except BadMessageError as error:
            self._end(str(error))
            return
        if received is None:
            self._end("it closed its socket")
        else:
            self._heard(*received)

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._lost(why)

    def close(self) -> None:
        """Close the socket without a call of `lost`. Idempotent."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._sock.close()
