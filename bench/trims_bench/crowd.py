"""Many clients of one process that come at once: `trims_bench.child`."""

from __future__ import annotations

import os
import selectors
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trims.wire.address import ATTACH_SOCKET
from trims_bench.raw import HELLO, RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.wire.frames import Message

#: A client that has no answer by then counts as not answered.
_WAIT_S = 10.0


def visit(runtime_dir: str, model: str, clients: int, at_ns: int) -> Iterator[dict[str, Any]]:
    """Connect at a moment and have each client open the model once; those that are served stay until the end.

    Args:
        model: Resident there.
        at_ns: When, on the monotonic clock, which all processes share.

    Yields:
        Nanoseconds of those that were served and of those that were refused for want of capacity, by `served` and
        `refused`; under `others` what came of the rest. Then, at the end, nothing.
    """
    time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
    with ExitStack() as stack:
        crowd = _Crowd()
        for _ in range(clients):
            crowd.add(stack, os.path.join(runtime_dir, ATTACH_SOCKET), model)
            crowd.hear(0)
        until_s = time.monotonic() + _WAIT_S
        while crowd.waiting and time.monotonic() < until_s:
            crowd.hear(0.1)
        yield {**crowd.found, "others": crowd.others + ["no answer"] * crowd.waiting}
    yield {}


class _Crowd:
    """Crowd of clients, and what became of them."""

    def __init__(self) -> None:
        self._poll = selectors.DefaultSelector()
        self.waiting = 0
        self.found: dict[str, list[int]] = {"served": [], "refused": []}
        self.others: list[str] = []

    def add(self, stack: ExitStack, path: str, model: str) -> None:
        """One client more."""
        began = time.monotonic_ns()
        client = stack.enter_context(RawClient(path))
        client.send(HELLO, {"op": "open", "id": 1, "model": model})
        self._poll.register(client.sock, selectors.EVENT_READ, (client, began))
        self.waiting += 1

    def hear(self, wait_s: float) -> None:
        """Take in the daemon's answers that are there, or that come within this time in seconds."""
        for key, _ in self._poll.select(wait_s):
            client, began = key.data
            try:
                messages = client.receive()
            except OSError as error:
                self._over(client, str(error))
                continue
            for message in messages:
                self._count(client, message, time.monotonic_ns() - began)

    def _count(self, client: RawClient, message: Message, taken_ns: int) -> None:
        if "lease" in message:
            self.found["served"].append(taken_ns)
            self._over(client)
        elif "error" in message:
            code = message["error"]["code"]
            if code == "capacity":
                self.found["refused"].append(taken_ns)
            self._over(client, "" if code == "capacity" else code)

    def _over(self, client: RawClient, what: str = "") -> None:
        self._poll.unregister(client.sock)
        self.waiting -= 1
        if what:
            self.others.append(what)
