"""The books of a daemon, driven without a daemon: `trims.core.residency` with every event timed, and no bytes at all.

What is timed is what the books' lock is held for: making the event and handling it.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections import deque
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from trims.core.lease import Waiter
from trims.core.place import CPU
from trims.core.residency import events
from trims.core.residency.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.core.lease import Lease
    from trims.core.policy.eviction import Policy
    from trims.core.residency.events import Event, Instruction

#: Bytes of every image.
_IMAGE_BYTES = 10
#: Seconds longer than anything here lasts on the clock of the books.
_DEADLINE_S = 1e9
_COST_S = 1.0


def settle() -> None:
    """Run on one core, and spare the garbage collector what is there now. It goes on collecting what comes."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.collect()
    gc.freeze()


def _policy(name: str) -> Policy:
    (entry,) = entry_points(group="trims.policies", name=name)
    made: Policy = entry.load()()
    return made


class DrivenBooks:
    """Books with idle replicas, as many as fit, so that whatever comes next has to evict or to wait.

    Args:
        policy: Name of the eviction policy.
    """

    def __init__(self, replicas: int, policy: str = "lru") -> None:
        self.residency = Residency({CPU: replicas * _IMAGE_BYTES}, {CPU: _policy(policy)})
        self._now_s = 0.0
        self._tickets = itertools.count(1)
        self._names = itertools.count(1)
        self.keys = [f"{number:064x}" for number in range(replicas)]
        for key in self.keys:
            self.feed(events.Adopted, key=key, place=CPU, nbytes=_IMAGE_BYTES)

    def feed(self, kind: type[Event], **fields: Any) -> tuple[int, list[Instruction]]:
        """Let an event happen, a second after the last one; its nanoseconds, and what follows."""
        self._now_s += 1
        began = time.perf_counter_ns()
        instructions = self.residency.handle(kind(at_s=self._now_s, **fields))
        return time.perf_counter_ns() - began, instructions

    def new_key(self) -> str:
        """Return the key of an image that is nowhere yet."""
        return f"new-{next(self._names):060x}"

    # -- an open, event by event -----------------------------------------------------------------------------------

    def request(self, key: str, session: int, *, patient: bool = False) -> tuple[int, int, list[Instruction]]:
        """An open arrives; nanoseconds, its ticket, and what follows. A patient one has a deadline."""
        ticket = next(self._tickets)
        waiter = Waiter(ticket, session, True, self._now_s + _DEADLINE_S if patient else None)
        taken, instructions = self.feed(events.Requested, key=key, place=CPU, waiter=waiter)
        return taken, ticket, instructions

    def measured(self, key: str, nbytes: int = _IMAGE_BYTES) -> tuple[int, list[Instruction]]:
        """The size of a queued image has become known."""
        replica = self.residency.find(key, CPU)
        assert replica is not None, "it is queued"
        about = {"generation": replica.generation, "measurement": replica.measuring}
        return self.feed(events.Measured, key=key, place=CPU, nbytes=nbytes, **about)

    def freed(self, free: events.Free) -> tuple[int, list[Instruction]]:
        """The tier has given memory back."""
        return self.feed(events.Freed, key=free.key, place=CPU, generation=free.generation)

    def filled(self, key: str) -> tuple[int, list[Instruction]]:
        """An image has been filled."""
        replica = self.residency.find(key, CPU)
        assert replica is not None, "it is being filled"
        return self.feed(events.Filled, key=key, place=CPU, generation=replica.generation, cost_s=_COST_S)

    def close(self, lease: Lease) -> tuple[int, list[Instruction]]:
        """A session gives a lease back."""
        return self.feed(events.Closed, lease=lease.number, session=lease.session)

    def open_that_evicts(self) -> tuple[int, int]:
        """A whole open of an image that is nowhere, and its close; nanoseconds of the event that evicts, and of all."""
        key = self.new_key()
        requested, _, _ = self.request(key, 1)
        evicting, instructions = self.measured(key)
        freed, _ = self.freed(only(instructions, events.Free))
        filled, instructions = self.filled(key)
        closed, _ = self.close(only(instructions, events.Grant).lease)
        return evicting, requested + evicting + freed + filled + closed

    def warm(self, key: str, session: int) -> tuple[int, Lease]:
        """An open of what is there; nanoseconds, and the lease."""
        taken, _, instructions = self.request(key, session)
        return taken, only(instructions, events.Grant).lease

    def end(self, session: int) -> tuple[int, list[Instruction]]:
        """A client has gone."""
        return self.feed(events.SessionEnded, session=session)

    def leave(self, ticket: int) -> None:
        """A waiter gives up."""
        self.feed(events.WaiterLeft, ticket=ticket)


class CrowdedBooks(DrivenBooks):
    """Books all of whose replicas are read, and opens that wait in line for room.

    Args:
        shared: Replicas that many sessions read.
        sole: Replicas that one session reads, each with its last lease.
        waiters: Opens with a deadline that wait.
        one_image: They wait for one image that needs the whole place; else each for an image of its own.

    Attributes:
        sole: The last leases, oldest first.
        waited_for: The one image.
    """

    def __init__(
        self, *, shared: int, sole: int, sessions: int, leases: int, waiters: int, one_image: bool = False
    ) -> None:
        super().__init__(shared + sole)
        self._sessions = sessions
        self.shared = self.keys[:shared]
        self.waited_for = self.new_key()
        self._next_session = itertools.count(sessions + 1)
        for session in range(1, sessions + 1):
            self.read_shared(session, leases)
        alone = self.new_session()
        self.sole = deque(self.warm(key, alone)[1] for key in self.keys[shared:])
        for number in range(waiters):
            if not one_image:
                self.arrive(self.new_key(), number)
            elif number:
                self.request(self.waited_for, self._session(number), patient=True)
            else:
                self.arrive(self.waited_for, number, len(self.keys) * _IMAGE_BYTES)

    def _session(self, number: int) -> int:
        return 1 + number % self._sessions

    def new_session(self) -> int:
        """A client connects."""
        return next(self._next_session)

    def read_shared(self, session: int, leases: int) -> list[Lease]:
        """A session opens some of the replicas that many read."""
        first = session * leases
        return [self.warm(self.shared[(first + each) % len(self.shared)], session)[1] for each in range(leases)]

    def arrive(self, key: str, number: int = 0, nbytes: int = _IMAGE_BYTES) -> tuple[int, int]:
        """An open of another image comes, which has to stand in line; nanoseconds, and its ticket."""
        requested, ticket, _ = self.request(key, self._session(number), patient=True)
        measured, instructions = self.measured(key, nbytes)
        assert not [each for each in instructions if isinstance(each, events.Free)], "nothing is idle"
        return requested + measured, ticket

    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        """Give back what is to be freed and fill what gets its room; the new leases are the last of their replicas."""
        for free in [each for each in instructions if isinstance(each, events.Free)]:
            _, following = self.freed(free)
            for fill in [each for each in following if isinstance(each, events.Fill)]:
                _, granted = self.filled(fill.key)
                self.sole.append(only(granted, events.Grant).lease)


def only(instructions: Iterable[Instruction], kind: type[Any]) -> Any:
    """The one instruction of this kind."""
    (found,) = [each for each in instructions if isinstance(each, kind)]
    return found
