"""Cost of the books alone, which are locked meanwhile: of one event, and of the pieces of `trims check`."""

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
from trims_bench.child import call
from trims_bench.measuring import Bar, Comparison, Figure, Samples, middle
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trims.core.lease import Lease
    from trims.core.policy.eviction import Policy
    from trims.core.residency.events import Event, Instruction
    from trims_bench.scenarios.base import Setup


# The books of a daemon, driven without a daemon: `trims.core.residency` with every event timed, and no bytes at all.
#
# What is timed is what the books' lock is held for: making the event and handling it.

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
        one_image: Whether they wait for one image that needs the whole place; else each for an image of its own.

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


_BOOKS = "cost of the books alone, on one core: opens that evict, arrivals, closes and ends of sessions in a crowd"
_CHECK = "longest time `trims check` holds the books, with 10,000 replicas"
POLICIES = ("lru", "lfu", "fifo", "gdsf")
_BAR, _BAR_GROWTH, _BAR_LEASE, _BAR_HOLD = Bar("<=", 0.1), Bar("<=", 2.0), Bar("<=", 20.0), Bar("<=", 10.0)
_LEASES = 20
_WARM_UP = 20
_ENDS = "end of a session, a lease"
_STATES = ("all idle", "half read, half waited for", "all read, one waited for")


# -- events --------------------------------------------------------------------------------------------------------


def books(setup: Setup) -> Figure:
    """Measure by policy and number of idle replicas; then with sessions and waiters."""
    figure = Figure("books", _BOOKS, [], [])
    sizes = [setup.size(full, full // 100 + 4) for full in (100, 1_000, 10_000, 100_000)]
    for policy in POLICIES:
        given = {"policy": policy, "sizes": sizes, "count": setup.repeats(2000)}
        figure.comparisons += _evictions(policy, sizes, call(measure_evictions, given))
    crowd = {"sessions": setup.size(2000, 30), "waiters": setup.size(5000, 40), "count": setup.repeats(1000)}
    for one_image in (False, True):
        waiting = f"{crowd['waiters']:,} wait {'for one' if one_image else 'apart'}"
        found = call(measure_crowd, {**crowd, "one_image": one_image})
        figure.comparisons += [_of_a_crowd(f"{waiting}: {what}", each) for what, each in found.items()]
    figure.notes.append(
        "An open that evicts: of an image that is nowhere, and its close, in five events (other side: the one event "
        "that evicts, in which the size becomes known); without what is done between them. Medians; Python's collector "
        "runs, but not over what was there before (gc.freeze), as in the daemon."
    )
    figure.notes.append(
        "Waiters have deadlines, and wait for room, apart (each for an image of its own) or all for one image; there "
        f"are {crowd['sessions']:,} sessions with {_LEASES} leases each. A last close makes a replica idle, which is "
        "evicted for the first in line; where all wait for one image it is too little for that."
    )
    return figure


def _evictions(policy: str, sizes: list[int], found: list[list[list[int]]]) -> list[Comparison]:
    compared, medians = [], []
    for idle, (evicting, whole) in zip(sizes, found, strict=True):
        ours, beside = Samples("all events of the open", whole), Samples("the event that evicts", evicting)
        medians.append(ours.median)
        compared.append(middle(f"{policy}, {idle:,} idle: open that evicts", ours, _BAR, beside))
    growth = f"{policy}, {sizes[-1]:,} idle, times {sizes[0]:,}"
    return [*compared, Comparison(growth, medians[-1] / medians[0], "x", _BAR_GROWTH, ())]


def _of_a_crowd(what: str, values: list[int]) -> Comparison:
    samples = Samples(what, values)
    if _ENDS in what:
        return Comparison(what, samples.median / 1e3, "us", _BAR_LEASE, (samples,))
    return middle(what, samples, _BAR)


def measure_evictions(policy: str, sizes: list[int], count: int) -> list[list[list[int]]]:
    """Return for each number of idle replicas the nanoseconds of events that evict, and of whole opens."""
    found = []
    for idle in sizes:
        books = DrivenBooks(idle, policy)
        settle()
        pairs = [books.open_that_evicts() for _ in range(count + _WARM_UP)][_WARM_UP:]
        books.residency.validate()
        found.append([list(side) for side in zip(*pairs, strict=True)])
    return found


def measure_crowd(sessions: int, waiters: int, count: int, one_image: bool) -> dict[str, list[int]]:
    """Nanoseconds by what happens."""
    books = CrowdedBooks(
        shared=max(_LEASES, sessions // 2),
        sole=_LEASES,
        sessions=sessions,
        leases=_LEASES,
        waiters=waiters,
        one_image=one_image,
    )
    settle()
    found = {
        "arrival": [_arrival(books, number, one_image) for number in range(count)],
        "arrival, warm": [],
        "close, others read on": [],
        "last close": [],
        f"{_ENDS}, others read on": [_end_among_others(books) for _ in range(count)],
    }
    for number in range(count):
        arrived, lease = books.warm(books.shared[number % len(books.shared)], 1)
        found["arrival, warm"].append(arrived)
        found["close, others read on"].append(books.close(lease)[0])
        found["last close"].append(_last_close(books, number, one_image))
    if not one_image:
        found[f"{_ENDS}, all the last"] = [_end_of_all(books) for _ in range(count // 4 + 1)]
    books.residency.validate()
    return found


def _arrival(books: CrowdedBooks, number: int, one_image: bool) -> int:
    if one_image:
        taken, ticket, _ = books.request(books.waited_for, 1, patient=True)
    else:
        taken, ticket = books.arrive(books.new_key(), number)
    books.leave(ticket)
    return taken


def _last_close(books: CrowdedBooks, number: int, one_image: bool) -> int:
    lease = books.sole.popleft()
    taken, instructions = books.close(lease)
    books.carry_out(instructions)
    if one_image:
        books.sole.append(books.warm(lease.key, lease.session)[1])
    else:
        books.arrive(books.new_key(), number)
    return taken


def _end_among_others(books: CrowdedBooks) -> int:
    session = books.new_session()
    books.read_shared(session, _LEASES)
    return books.end(session)[0] // _LEASES


def _end_of_all(books: CrowdedBooks) -> int:
    """One session comes to hold every last lease, and ends: twenty waiters get room at once."""
    session = books.new_session()
    for _ in range(_LEASES):
        former = books.sole.popleft()
        books.warm(former.key, session)
        books.close(former)
    taken, instructions = books.end(session)
    books.carry_out(instructions)
    for number in range(_LEASES):
        books.arrive(books.new_key(), number)
    return taken // _LEASES


# -- pieces of a check ---------------------------------------------------------------------------------------------


def check_hold(setup: Setup) -> Figure:
    """Measure in three states of the books."""
    compared, notes = [], []
    for state in _STATES:
        given = {"state": state, "replicas": setup.size(10_000, 200), "sessions": setup.size(2000, 10)}
        found = call(measure_check, {**given, "count": setup.repeats(20)})
        longest, piece = Samples("longest piece of a check", found["longest"]), Samples("a piece", found["pieces"])
        compared.append(middle(f"{state}: longest piece", longest, _BAR_HOLD, piece))
        compared.append(middle(f"{state}: list of pieces", Samples("list of pieces", found["making"]), _BAR_HOLD))
        compared.append(
            middle(f"{state}: list of what is sealed", Samples("list of what is sealed", found["listing"]), _BAR_HOLD)
        )
        longest_ms = max(found["longest"]) / 1e6
        notes.append(f"{state}: {found['which']} is the longest piece; {longest_ms:.2f} ms in the worst of all checks.")
    notes.append("The median over checks of each one's longest piece; other side: the median of all pieces.")
    return Figure("check_hold", _CHECK, compared, notes)


def measure_check(state: str, replicas: int, sessions: int, count: int) -> dict[str, Any]:
    """Measure a check as `trims.daemon.check` does it; nanoseconds, and the piece that is the longest most often."""
    from trims.core.replica import State

    residency = _books_in(state, replicas, sessions)
    assert len(residency.replicas) in (replicas, replicas + 1), len(residency.replicas)
    settle()
    making, listing, pieces, longest, which = [], [], [], [], []
    for _ in range(count):
        listing.append(_timed(lambda: [each for each in residency.replicas.values() if each.state is State.SEALED]))
        began = time.perf_counter_ns()
        made = list(residency.checks())
        making.append(time.perf_counter_ns() - began)
        taken = [(_timed(piece), _name(piece)) for piece in made]
        pieces += [each for each, _ in taken]
        longest.append(max(taken)[0])
        which.append(max(taken)[1])
    found = max(set(which), key=which.count)
    return {"making": making, "listing": listing, "pieces": pieces, "longest": longest, "which": found}


def _books_in(state: str, replicas: int, sessions: int) -> Residency:
    if state == _STATES[0]:
        return DrivenBooks(replicas).residency
    half, one_image = replicas // 2, state == _STATES[2]
    shared = replicas if one_image else replicas - half
    books = CrowdedBooks(shared=shared, sole=0, sessions=sessions, leases=_LEASES, waiters=half, one_image=one_image)
    return books.residency


def _timed(do: Callable[[], object]) -> int:
    began = time.perf_counter_ns()
    do()
    return time.perf_counter_ns() - began


def _name(piece: Callable[[], None]) -> str:
    return str(getattr(getattr(piece, "func", piece), "__name__", piece)).strip("_").replace("_", " ")


PARTS = {"books": Part(_BOOKS, books), "check_hold": Part(_CHECK, check_hold)}
