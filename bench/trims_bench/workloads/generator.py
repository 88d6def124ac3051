"""Process that makes the load: it sends each request at its time, whatever has become of those before.

    python -m trims_bench.workloads.generator --socket N --lifeline M

Both are descriptors that `load` gives it (see `trims.process.child`). The order comes through the socket, and what was
recorded goes back through it while the load runs. The process has one thread, imports little, and collects no garbage:
what it waits for is the kernel and the clock.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import json
import os
import resource
import select
import signal
import socket
import ssl
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from trims.process.lifeline import depend_on
from trims_bench.workloads.exchange import Connection, Request, clock
from trims_bench.workloads.order import receive_order
from trims_bench.workloads.records import (
    DEADLINE,
    MOST_RECORDS,
    NEVER,
    NO_CONNECTION,
    RECORD,
    RECORDS,
    REFUSED,
    STOPPED,
    UNKNOWN,
    UNSENT,
)

if TYPE_CHECKING:
    from trims_bench.workloads.order import Order

#: Seconds that are too short to sleep: the kernel wakes a process later than that.
_SPIN_S = 50e-6
_LONGEST_SLEEP_S = 0.1
#: Events between two looks at the clock: each takes some 30 us.
_MOST_EVENTS = 16
#: Requests that are sent before answers are looked at again.
_MOST_SENT = 64
#: Seconds between two packets with records.
_TOLD_NS = 100_000_000
#: Nanoseconds between the last preparation and the beginning.
_AHEAD_NS = 20_000_000
_CONNECT_NS = 5_000_000_000
#: Nanoseconds after which a closed loop asks again where a request failed: it would do nothing else otherwise.
_PAUSE_NS = 10_000_000
#: Descriptors that are no connections.
_OWN_DESCRIPTORS = 16
_STOP = b"stop"


class Arrivals(Protocol):
    """Requests that are to come."""

    #: Intended time of the next one, on the clock; None if none comes for now.
    next_ns: int | None
    #: Whether none will come any more.
    over: bool

    def take(self) -> Request:
        """Return the next one."""

    def done(self, now: int, *, failed: bool) -> None:
        """Take note that a request is over."""


class OpenArrivals:
    """Requests at times that were laid down before, whatever becomes of them."""

    def __init__(self, order: Order, begin: int) -> None:
        self._times, self._models, self._begin = order.times_ns, order.models, begin
        self._at = 0
        self._look()

    def _look(self) -> None:
        self.over = self._at == len(self._times)
        self.next_ns: int | None = None if self.over else self._begin + self._times[self._at]

    def take(self) -> Request:
        """Return the next one."""
        assert self.next_ns is not None, "one is due"
        found = Request(self._at, self._models[self._at], self.next_ns)
        self._at += 1
        self._look()
        return found

    def done(self, now: int, *, failed: bool) -> None:
        """Do nothing: no request depends on another one."""


class ClosedArrivals:
    """Requests that each come as soon as one before is over: as many are on their way at any time."""

    def __init__(self, order: Order, begin: int) -> None:
        self._models = order.models
        self._most, self._end = order.most_requests, begin + order.most_ns
        self._due = [begin] * order.concurrency
        self._at = 0
        self._look()

    def _look(self) -> None:
        if self._at >= self._most or (self._due and self._due[0] >= self._end):
            self._due = []
            self._most = self._at  # those that are on their way are followed by none
        self.over = self._at >= self._most
        self.next_ns: int | None = self._due[0] if self._due else None

    def take(self) -> Request:
        """Return the next one."""
        found = Request(self._at, self._models[self._at % len(self._models)], heapq.heappop(self._due))
        self._at += 1
        self._look()
        return found

    def done(self, now: int, *, failed: bool) -> None:
        """Have another one follow."""
        heapq.heappush(self._due, now + _PAUSE_NS if failed else now)
        self._look()


class Generator:
    """Load of one order.

    Args:
        door: Connection to the command, which takes records, and may ask for the end.
        scheduling: The kernel's policy for this process, for the report.
    """

    def __init__(self, order: Order, door: socket.socket, scheduling: str = "other") -> None:
        self._order = order
        self._door = door
        self._tls = _tls(order)
        self._poll = select.epoll()
        self._poll.register(door.fileno(), select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        #: Free connections, the one that was used last at the end.
        self._idle: dict[Connection, None] = {}
        self._waiting: deque[Request] = deque()
        #: Requests in the order in which their deadlines pass; those that are over are skipped.
        self._deadlines: deque[Request] = deque()
        self._on_their_way = 0
        self._most = min(order.most_connections, _raise_descriptors(order.most_connections))
        self._packed = bytearray()
        self._unsent: deque[bytes] = deque()
        self._told = self.begin = 0
        self._stopped = False
        self.most_used = 0
        self.scheduling = scheduling
        self._arrivals: Arrivals = OpenArrivals(order, 0)

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send everything, and wait for all answers, at most until their deadlines."""
        self._connect_ahead()
        self.begin = self._told = clock() + _AHEAD_NS
        kind = OpenArrivals if len(self._order.times_ns) else ClosedArrivals
        self._arrivals = kind(self._order, self.begin)
        while not self._stopped and not (self._arrivals.over and not self._on_their_way):
            now = self._send_due()
            self._expire(now)
            for _ in range(min(len(self._waiting), _MOST_SENT)):
                self._dispatch()
            if now - self._told > _TOLD_NS:
                self._tell(now)
            self._sleep(now)
            self._look()
        if self._stopped:
            self._give_up()
        self._tell(clock())

    def _connect_ahead(self) -> None:
        until = clock() + _CONNECT_NS
        for _ in range(min(self._order.connections_ahead, self._most)):
            try:
                connection = self._connect()
            except OSError:
                return  # each request will say so
            connection.prepare()
        while len(self._idle) < len(self._connections) and clock() < until and not self._stopped:
            select.select([self._poll], [], [], _LONGEST_SLEEP_S)
            self._look()

    def _send_due(self) -> int:
        """Send requests that are due; returns the time now."""
        now = clock()
        arrivals = self._arrivals
        for _ in range(_MOST_SENT):
            if arrivals.next_ns is None or arrivals.next_ns > now:
                break
            request = arrivals.take()
            self._on_their_way += 1
            self._deadlines.append(request)
            self._waiting.append(request)
            self._dispatch()
            now = clock()
        return now

    def _dispatch(self) -> None:
        """Send the request that waits longest over a connection that is free, or over a new one."""
        while self._waiting and self._waiting[0].over:
            self._waiting.popleft()
        if not self._waiting:
            return
        if self._idle:
            connection, _ = self._idle.popitem()
        elif len(self._connections) < self._most:
            try:
                connection = self._connect()
            except OSError as error:
                refused = isinstance(error, ConnectionRefusedError)
                self._record(self._waiting.popleft(), REFUSED if refused else NO_CONNECTION, UNKNOWN)
                return
        else:
            return
        request = self._waiting.popleft()
        connection.send(request, self._order.requests[request.model])

    def _room(self) -> bool:
        return bool(self._idle) or len(self._connections) < self._most

    def _connect(self) -> Connection:
        connection = Connection(self._order.server, self._tls, self)
        self._connections[connection.fd] = connection
        self._poll.register(connection.fd, select.EPOLLIN)
        self.most_used = max(self.most_used, len(self._connections))
        return connection

    def _expire(self, now: int) -> None:
        """Record requests that have waited for too long."""
        limit = now - self._order.deadline_ns
        while self._deadlines and (self._deadlines[0].over or self._deadlines[0].intended <= limit):
            request = self._deadlines.popleft()
            if not request.over:
                connection = request.connection
                if connection is not None:
                    connection.give_up()
                    self._drop(connection)
                self._record(request, DEADLINE if request.sent != NEVER else UNSENT, UNKNOWN)

    def _sleep(self, now: int) -> None:
        """Sleep until the next request is due, or something happens.

        epoll counts in milliseconds, and `select` as finely as the kernel does: so the latter waits for the former.
        """
        if self._waiting and self._room():
            return
        wait = _LONGEST_SLEEP_S
        if self._arrivals.next_ns is not None:
            wait = min(wait, (self._arrivals.next_ns - clock()) / 1e9)
        if self._deadlines:
            wait = min(wait, max((self._deadlines[0].intended + self._order.deadline_ns - now) / 1e9, 1e-3))
        if wait > _SPIN_S:
            select.select([self._poll], [], [], wait)

    def _look(self) -> None:
        """Handle some events; the clock is looked at between."""
        for fd, event in self._poll.poll(0, _MOST_EVENTS):
            if fd == self._door.fileno():
                self._hear()
                continue
            connection = self._connections.get(fd)
            if connection is not None and event & select.EPOLLOUT:
                connection.writable()
                connection = self._connections.get(fd)
            if connection is not None and event & ~select.EPOLLOUT:
                connection.readable()

    def _hear(self) -> None:
        """End at the command's word, or with it."""
        self._stopped = True
        if not self._door.recv(len(_STOP)):
            sys.exit(1)

    # -- what connections need -----------------------------------------------------------------------------------------

    def want(self, connection: Connection, *, writing: bool) -> None:
        """Have the connection looked at when it can be read, or also written."""
        self._poll.modify(connection.fd, select.EPOLLIN | (select.EPOLLOUT if writing else 0))

    def over(self, connection: Connection, request: Request | None, status: int, cold: int, *, usable: bool) -> None:
        """Record a request; its connection is free, or dropped."""
        if request is not None:
            self._record(request, status, cold)
        if usable:
            self._idle[connection] = None
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        if self._connections.pop(connection.fd, None) is not None:
            connection.close()

    # -- records -------------------------------------------------------------------------------------------------------

    def _record(self, request: Request, status: int, cold: int) -> None:
        now = clock()
        begin = self.begin
        request.over = True
        sent = request.sent - begin if request.sent != NEVER else NEVER
        first = request.first - begin if request.first != NEVER else NEVER
        done = now - begin if status != STOPPED else NEVER
        self._packed += RECORD.pack(
            request.number, request.model, status, cold, request.intended - begin, sent, first, done
        )
        if len(self._packed) >= MOST_RECORDS * RECORD.size:
            self._unsent.append(RECORDS + self._packed)
            self._packed = bytearray()
        self._on_their_way -= 1
        self._arrivals.done(now, failed=not 200 <= status < 300)

    def _give_up(self) -> None:
        """Record the requests that are on their way."""
        for request in self._deadlines:
            if not request.over:
                self._record(request, STOPPED, UNKNOWN)

    def _tell(self, now: int) -> None:
        """Send what was recorded, as far as the command takes it now: no request waits for that."""
        self._told = now
        if self._packed:
            self._unsent.append(RECORDS + self._packed)
            self._packed = bytearray()
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._door.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()

    def close(self) -> None:
        """Send what is left, and how it went."""
        for connection in self._connections.values():
            connection.close()
        self._poll.close()
        while self._unsent:
            self._door.send(self._unsent.popleft())
        summary = {"connections": self.most_used, "cpu_s": time.process_time(), "scheduling": self.scheduling}
        self._door.send(json.dumps(summary).encode())


def take_precedence() -> str:
    """Be woken before other processes, if this user may: those that compute would delay requests. Return the policy."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return "other"
    return "fifo"


def _tls(order: Order) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=order.server.certificate) if order.server.tls else None


def _raise_descriptors(most: int) -> int:
    """Have as many descriptors as there may be connections, if that is allowed; returns how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _OWN_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, soft - _OWN_DESCRIPTORS)


def main() -> None:
    """Entry of the process. Arguments: those of its ties."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    depend_on(int(sys.argv[4]))
    with socket.socket(fileno=int(sys.argv[2])) as door:
        generator = Generator(receive_order(door), door, take_precedence())
        gc.collect()
        gc.disable()
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # the command has gone
            generator.run()
            generator.close()


if __name__ == "__main__":
    main()
