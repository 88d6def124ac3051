"""Time that `trims check` holds the books at once: nothing is opened meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trims_bench.child import call
from trims_bench.figures import Bar, Comparison, Figure, Samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.residency.residency import Residency
    from trims_bench.scenarios.base import Setup

TITLE = "longest time `trims check` holds the books, with 10,000 replicas"
_BAR = Bar("<=", 10.0)
_LEASES = 20
_STATES = ("all idle", "half read, half waited for", "all read, one waited for")


def run(setup: Setup) -> Figure:
    """Measure in three states of the books."""
    compared, notes = [], []
    for state in _STATES:
        given = {"state": state, "replicas": setup.size(10_000, 200), "sessions": setup.size(2000, 10)}
        found = call(measure, {**given, "count": setup.repeats(20)})
        sides = Samples("longest piece of a check", found["longest"]), Samples("a piece", found["pieces"])
        compared.append(Comparison(f"{state}: longest piece", sides[0].median / 1e6, "ms", _BAR, sides))
        compared.append(_beside(state, "list of pieces", found["making"]))
        compared.append(_beside(state, "list of what is sealed", found["listing"]))
        longest_ms = max(found["longest"]) / 1e6
        notes.append(f"{state}: {found['which']} is the longest piece; {longest_ms:.2f} ms in the worst of all checks.")
    notes.append("The median over checks of each one's longest piece; other side: the median of all pieces.")
    return Figure("check_hold", TITLE, compared, notes)


def _beside(state: str, what: str, values: list[int]) -> Comparison:
    """Return the milliseconds of a check's other work under the lock, held against the bar."""
    samples = Samples(what, values)
    return Comparison(f"{state}: {what}", samples.median / 1e6, "ms", _BAR, (samples,))


def measure(state: str, replicas: int, sessions: int, count: int) -> dict[str, Any]:
    """Measure a check as `trims.daemon.check` does it; nanoseconds, and the piece that is the longest most often."""
    from trims.core.replica import State
    from trims_bench.driven import settle

    residency = _books(state, replicas, sessions)
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


def _books(state: str, replicas: int, sessions: int) -> Residency:
    from trims_bench.driven import CrowdedBooks, DrivenBooks

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
