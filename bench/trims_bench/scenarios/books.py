"""Cost of the books alone, which are locked meanwhile: of one event, and of the pieces of `trims check`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.driven import CrowdedBooks, DrivenBooks, settle
from trims_bench.measuring import Bar, Comparison, Figure, Samples, middle
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.residency.residency import Residency
    from trims_bench.scenarios.base import Setup

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
