"""A client that sends opens and closes of a model without pause, in a process of its own: `trims_bench.child`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trims.wire.address import ATTACH_SOCKET
from trims_bench.beside import Beside
from trims_bench.raw import HELLO, RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.wire.frames import Message

#: Opens that are on their way at any time; a session that leaves 256 answers unread is ended.
_ON_THEIR_WAY = 64


def flood(runtime_dir: str, model: str) -> Iterator[int]:
    """Yields 0 once the flood has begun, and at its end how many opens were answered."""
    answered: list[int] = []
    with RawClient(os.path.join(runtime_dir, ATTACH_SOCKET)) as client:
        flooding = _Flood(client, model)
        with Beside(lambda _: answered.append(flooding.answer())):
            yield 0
    yield sum(answered)


class _Flood:
    def __init__(self, client: RawClient, model: str) -> None:
        self._client = client
        self._open: Message = {"op": "open", "model": model}
        self._number = 0
        client.send(HELLO, *(self._next() for _ in range(_ON_THEIR_WAY)))

    def _next(self) -> Message:
        self._number += 1
        return {**self._open, "id": self._number}

    def answer(self) -> int:
        """Send a close for each answer that has come, and the next open; return how many answers came."""
        granted = [message for message in self._client.receive() if message.get("id") is not None]
        more: list[Message] = []
        for message in granted:
            assert "lease" in message, message
            more += [{"op": "close", "lease": message["lease"]}, self._next()]
        self._client.send(*more)
        return len(granted)
