"""Copier: a process that does what the daemon at the other end of a socket asks.

It runs when no other program wants the processor (SCHED_IDLE), and the kernel gives its disk requests the last place
with that. So it must hold nothing that another process waits for: it shares no interpreter and no lock with the daemon.
It ends when the daemon's end of the socket is closed, or when nothing was asked for a while.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from trims.background.messages import MOST_FDS, failure, read_order
from trims.background.task import Running, SourceFailedError
from trims.core.errors import LostPeerError
from trims.process import messages
from trims.process.lifeline import depend_on
from trims.trace.children import Reporter
from trims.trace.span import OFF
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.trace.span import AnySpan


# Share of a processor that a copier may take: a quarter, and a tenth while other programs compute.
#
# Threads of linear algebra wait by spinning and yielding, and yield to a process of the lowest priority as to any
# other. So the priority alone does not keep a copier from delaying them: how often it runs does.

#: Share of one processor for a copier while no other program computes.
ALONE = 0.25
#: Share of one processor for a copier while other programs compute.
BESIDE_OTHERS = 0.1
#: Share of one processor in use by other processes from which on they are said to compute. More than another copier
#: takes in the kernel, whose user time is counted apart as that of a process with a low priority.
_OTHERS = 0.35
#: Seconds between two looks at what other processes use.
_LOOK_S = 0.5
_STAT = "/proc/stat"


class CpuQuota:
    """Quota of one processor for one process.

    Args:
        busy_s: Processor seconds used by all processes since some moment, without user time of a low priority.
        own_s: Processor seconds used by this process. More, such as its user time, does no harm.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        busy_s: Callable[[], float] | None = None,
        own_s: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._busy_s = busy_s or _busy_s
        self._own_s = own_s or (lambda: os.times().system)
        self._clock = clock
        self._looked_at_s = clock()
        self._used_s = self._others_s()
        self._now = BESIDE_OTHERS  # until the first look

    def now(self) -> float:
        """Return the share, looked up twice a second; the smaller one where the kernel's counts cannot be read."""
        passed_s = self._clock() - self._looked_at_s
        if passed_s >= _LOOK_S:
            self._looked_at_s += passed_s
            before_s, self._used_s = self._used_s, self._others_s()
            self._now = ALONE if self._used_s - before_s < _OTHERS * passed_s else BESIDE_OTHERS
        return self._now

    def _others_s(self) -> float:
        """Return processor seconds of other processes; NaN, with which no comparison holds, if unknown."""
        try:
            return self._busy_s() - self._own_s()
        except (OSError, ValueError, IndexError):
            return float("nan")


def _busy_s() -> float:
    """Return processor seconds from the kernel's counts: user, nice, system, idle, iowait, irq, softirq."""
    with open(_STAT, encoding="ascii") as file:
        ticks = [int(each) for each in file.readline().split()[1:8]]
    user, system, irq, softirq = ticks[0], ticks[2], ticks[5], ticks[6]
    return (user + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


#: Without a request for so long, the memory of a process is worth more than its start.
IDLE_S = 30.0
#: A shorter pause is kept for after the next piece: each one wakes a processor.
_LEAST_PAUSE_S = 0.0005


def give_way() -> None:
    """Have the least priority and, where that is allowed, run only when no other program wants the processor."""
    os.nice(19)  # as this its time is counted, too: see `share`
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Where the kernel groups processes by session, the group has a weight of its own, whatever its processes are.
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write("19")


class Copier:
    """The requests of one connection.

    Args:
        sleep: Waits for as many seconds; None to end meanwhile if the daemon does.
        share: What it may take of a processor while the bandwidth is limited.
    """

    def __init__(
        self,
        connection: socket.socket,
        sleep: Callable[[float], None] | None = None,
        share: Callable[[], float] | None = None,
    ) -> None:
        self._connection = connection
        self._share = share or CpuQuota().now
        self._sleep = sleep or self._pause
        self._running: Running | None = None
        self._fds: list[int] = []
        self._free_at_s = 0.0
        self._spans = Reporter()
        #: The task as it was ordered, and its span.
        self._order: dict[str, Any] = {}
        self._carrying: AnySpan = OFF

    def serve(self) -> None:
        """Answer requests until the daemon is gone, or silent for long."""
        try:
            with contextlib.suppress(EOFError, LostPeerError, OSError):
                while (received := self._next()) is not None:
                    messages.send(self._connection, self._answer(*received))
        finally:
            self._drop()

    def _next(self) -> tuple[dict[str, Any], list[int]] | None:
        self._connection.settimeout(IDLE_S if self._running is None else None)
        return messages.receive(self._connection, most_fds=MOST_FDS)

    def _answer(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        what = request["do"]
        try:
            if what == "begin":
                return self._begin(request, fds)
            assert self._running is not None, "nothing was begun"
            if what == "go":
                return {"done": self._go(request["nbytes"], request["bytes_per_s"])}
            digests = self._running.digests() if what == "end" else {}
        except (SourceFailedError, OSError) as error:
            return self._ended(failure(error), error)
        return self._ended({"digests": digests})

    def _ended(self, answer: dict[str, Any], error: BaseException | None = None) -> dict[str, Any]:
        """Let go of the task. Return the answer with its spans, if they were asked for."""
        self._carrying.end(error)
        answer = self._spans.add(self._order, answer)
        self._drop()
        return answer

    def _begin(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._drop()
        self._fds, self._order = fds, request
        with self._spans.recorded(request):
            self._carrying = span("carry", carried_bytes=request["nbytes"])
        self._running = Running(read_order(request, fds))
        return {"done": 0}

    def _go(self, nbytes: int, bytes_per_s: float | None) -> int:
        """Do as many bytes, with pauses that keep the bandwidth, and the share of a processor (see `share`)."""
        assert self._running is not None, "nothing was begun"
        done, until = self._running.done_bytes, self._running.done_bytes + nbytes
        began_s = time.process_time()
        while done < until and (now := self._running.advance()) > done:
            if bytes_per_s is not None:
                took_s, began_s = time.process_time() - began_s, time.process_time()
                pause_s = max((now - done) / bytes_per_s, took_s * (1 / self._share() - 1))
                self._free_at_s = max(self._free_at_s, time.monotonic()) + pause_s
                if (left_s := self._free_at_s - time.monotonic()) >= _LEAST_PAUSE_S:
                    self._sleep(left_s)
            done = now
        return done

    def _pause(self, seconds: float) -> None:
        """Raises EOFError if the daemon has gone: it sends nothing while it waits for an answer."""
        if select.select([self._connection], [], [], seconds)[0]:
            raise EOFError("the daemon has ended")

    def _drop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None
        self._carrying.end()
        self._carrying, self._order = OFF, {}
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def main() -> None:
    """Entry of the process. Arguments: those of its ties."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    depend_on(int(sys.argv[4]))  # also while it waits for a disk
    give_way()
    with socket.socket(fileno=int(sys.argv[2])) as connection:
        Copier(connection).serve()
