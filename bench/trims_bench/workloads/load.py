"""The command's side of a load: it starts the generator's process, takes its records, and ends it."""

from __future__ import annotations

import contextlib
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.errors import InternalError, LostPeerError
from trims.process.child import Child, Ties, exit_words
from trims.process.child_environment import child_environment
from trims.process.python import run_module
from trims_bench.workloads.order import send_order, summary_in
from trims_bench.workloads.records import RECORD, RECORDS, unpacked

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from trims_bench.workloads.order import Order

_PACKET_BYTES = 256 << 10
#: Seconds between two looks at whether the load is to end.
_LOOK_S = 0.1
#: Seconds beyond all deadlines of requests in which the generator has to report, and after it was asked to end.
_GRACE_S = 15.0

DONE, INTERRUPTED, STOPPED = "done", "interrupted", "stopped"


@dataclass(slots=True)
class Driven:
    """Records of a load.

    Attributes:
        ended: `done`, `interrupted` (by Ctrl-C), `stopped` (by `watch`), or why the generator ended before its time.
        connections: Most connections that were open at once.
        cpu_s: Processor time of the generator.
        scheduling: Policy of the kernel for it: `fifo` if this user may have it, else `other`; empty if not known.
    """

    ended: str = DONE
    connections: int = 0
    cpu_s: float = 0.0
    scheduling: str = ""
    packed: bytearray = field(default_factory=bytearray)

    @property
    def records(self) -> NDArray[Any]:
        """Return all that was recorded; see `records.unpacked`."""
        return unpacked(self.packed)


def drive(order: Order, watch: Callable[[Driven], bool] = lambda _: False) -> Driven:
    """Carry out an order in a process of its own.

    Args:
        watch: Called when records have come; True ends the load before its time.

    Returns:
        What was recorded: all of it, or, after Ctrl-C or the end of the process, what had come until then.

    Raises:
        InternalError: The process cannot be started.
    """
    try:
        ties = Ties()
        child = Child(run_module("trims_bench.workloads.generator", *ties.arguments), ties, env=child_environment())
    except OSError as error:
        raise InternalError(f"the load generator cannot be started: {error}") from error
    try:
        return _Run(child, order, watch).result()
    finally:
        child.close()


class _Run:
    def __init__(self, child: Child, order: Order, watch: Callable[[Driven], bool]) -> None:
        self._child = child
        self._order = order
        self._watch = watch
        self._found = Driven()
        self._until = time.monotonic() + _seconds(order) + _GRACE_S
        self._asked_to_end = False

    def result(self) -> Driven:
        with _interrupts_noted() as interrupts:
            try:
                send_order(self._child.socket, self._order)
                while not self._take(interrupts):
                    pass
            except LostPeerError:
                self._lost()
        return self._found

    def _take(self, interrupts: list[int]) -> bool:
        """Take one packet; True after the last one."""
        if interrupts and self._found.ended != INTERRUPTED:
            self._end(INTERRUPTED)
        if not _readable(self._child.socket):
            if time.monotonic() > self._until:
                self._found.ended = "the generator did not report in time, and was ended"
                return True
            return False
        try:
            packet = self._child.socket.recv(_PACKET_BYTES)
        except ConnectionResetError:
            return False  # it ended before it read the order to end; what it had sent follows
        if not packet:
            self._lost()
            return True
        if not packet.startswith(RECORDS):
            summary = summary_in(packet)
            self._found.connections, self._found.cpu_s = summary["connections"], summary["cpu_s"]
            self._found.scheduling = summary["scheduling"]
            return True
        self._found.packed += packet[len(RECORDS) :]
        if not self._asked_to_end and self._watch(self._found):
            self._end(STOPPED)
        return False

    def _end(self, why: str) -> None:
        self._found.ended = why
        self._asked_to_end = True
        self._until = min(self._until, time.monotonic() + _GRACE_S)
        with contextlib.suppress(OSError):  # it has ended by itself
            self._child.socket.send(b"stop")

    def _lost(self) -> None:
        """Say how the generator ended without being asked to."""
        self._child.kill()
        self._found.ended = f"the generator {exit_words(self._child.reap())}"
        del self._found.packed[len(self._found.packed) // RECORD.size * RECORD.size :]


def _seconds(order: Order) -> float:
    """Return how long a load takes at most."""
    last_ns = order.times_ns[-1] if len(order.times_ns) else order.most_ns
    return (last_ns + order.deadline_ns) / 1e9


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(_LOOK_S * 1000))


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Collect Ctrl-C instead of raising it, so that no record is lost. Only the main thread gets signals."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
