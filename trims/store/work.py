"""Workers for what may block: small pools of threads, and what the store needs of a clock.

A pool's threads are daemon threads: one that hangs in a system call (a dead network mount) must not keep the process
from ending. The simulation puts its own pools and clock in their place, which run in one thread in an order of its
choice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from trims.store.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")
log = logging.getLogger(__name__)
#: Niceness of threads that use a processor for as long as they have work. The doors' threads share the interpreter
#: lock with them, so it is no more than it takes: a thread that is stopped while it has the lock stops the doors.
BEHIND = 10
#: Niceness of work that no request waits for.
LAST = 19


class Pool(Protocol):
    """Runs work, some at a time: tenants in turn, the work of each oldest first."""

    def submit(self, work: Callable[[], object], tenant: str | None = None) -> bool:
        """Have it run soon, in another thread; False if the pool has stopped. Never blocks, never raises.

        Args:
            tenant: Tenant that asks; None for the daemon's own user.
        """
        ...

    def stop(self, *, drop: bool = False, timeout_s: float | None = None) -> bool:
        """Take no more work and wait until what is there is done; False if it was not within the time.

        Args:
            drop: Forget what has not begun.
            timeout_s: Seconds to wait; None waits as long as it takes.
        """
        ...


class Pools(Protocol):
    """Makes pools."""

    def __call__(self, name: str, threads: int, *, niceness: int = 0) -> Pool:
        """Make a pool: its name, its most threads, and their niceness."""
        ...


class ThreadPool:
    """A `Pool` of daemon threads, started when there is work for one more.

    Args:
        name: Threads are called by it.
        niceness: Niceness of its threads: `BEHIND` or `LAST` for what keeps a processor busy.
    """

    def __init__(self, name: str, threads: int, *, niceness: int = 0) -> None:
        self._name = name
        self._most = threads
        self._niceness = niceness
        self._changed = threading.Condition()
        self._work: FairQueue[Callable[[], object]] = FairQueue()
        self._threads = 0
        self._idle = 0
        self._stopping = False

    def submit(self, work: Callable[[], object], tenant: str | None = None) -> bool:
        """See `Pool.submit`."""
        with self._changed:
            if self._stopping:
                return False
            self._work.add(work, tenant)
            if self._idle >= len(self._work):
                self._changed.notify()
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=f"trims-{self._name}", daemon=True).start()
            return True

    def stop(self, *, drop: bool = False, timeout_s: float | None = None) -> bool:
        """See `Pool.stop`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._stopping = True
            if drop:
                self._work.clear()
            self._changed.notify_all()
            while self._threads:
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def _run(self) -> None:
        step_back(self._niceness)
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:  # also one that is no Exception: a worker that ended would leave its pool without one
                log.exception("work of %s failed", self._name)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._idle += 1
            while not self._work and not self._stopping:
                self._changed.wait()
            self._idle -= 1
            if self._work:
                return self._work.pop()
            self._threads -= 1
            self._changed.notify_all()
            return None


class PoolsByMount:
    """Pools of one kind, one for each mount point, made on demand: what hangs on one holds up no other."""

    def __init__(self, pools: Pools, name: str, threads: int) -> None:
        self._new_pool = pools
        self._name, self._threads = name, threads
        self._lock = threading.Lock()
        self._by_mount: dict[str, Pool] = {}

    def of(self, mount: str) -> Pool:
        """Return the pool of a mount point."""
        with self._lock:
            pool = self._by_mount.get(mount)
            if pool is None:
                pool = self._by_mount[mount] = self._new_pool(self._name, self._threads)
            return pool

    def stop(self, *, drop: bool = False, timeout_s: float | None = None) -> bool:
        """Stop each; see `Pool.stop`. True if all have ended."""
        with self._lock:
            pools = list(self._by_mount.values())
        ended = [pool.stop(drop=drop, timeout_s=timeout_s) for pool in pools]  # each, also behind one that has not
        return all(ended)


class Slots:
    """A few slots of each name, for what may be done by so many at once. Nothing here waits for one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_of(self, name: str) -> Iterator[bool]:
        """Take a slot for a `with` block; False if all of that name are taken."""
        with self._lock:
            free = self._taken[name] < self._most
            self._taken[name] += free
        try:
            yield free
        finally:
            with self._lock:
                self._taken[name] -= free


def step_back(niceness: int = BEHIND) -> None:
    """Let other threads go before this one. Threads that it starts inherit that."""
    if niceness > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def stepped_back(work: Callable[[], Result]) -> Result:
    """Do what keeps a processor busy in a thread that steps back, and wait for it: a thread cannot step forward again.

    Returns what the work returns, raises what it raises.
    """
    done: Future[Result] = Future()

    def run() -> None:
        step_back()
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)

    behind = threading.Thread(target=run, name="trims-behind", daemon=True)  # it may hang, as those of pools
    behind.start()
    behind.join()
    return done.result()


def thread_pool(name: str, threads: int, *, niceness: int = 0) -> Pool:
    """Return the `Pools` of a daemon."""
    return ThreadPool(name, threads, niceness=niceness)
