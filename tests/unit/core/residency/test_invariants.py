"""The check of the books: damage is found and named, at one moment and in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from books import Bench
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import InvariantError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK
from trims.core.replica import Replica, Share, State
from trims.core.residency.events import Closed, EvictRequested, PinChanged, SessionEnded

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.residency.residency import Residency

#: Ways to damage books that have one leased replica, and the rule that each breaks.
DAMAGES: list[tuple[Callable[[Residency], object], str]] = [
    (lambda r: setattr(r.capacity.at[CPU], "charged_bytes", 1), "charged"),
    (lambda r: r.replicas["a", CPU].leases.update({99: None}), "lease 99"),
    (lambda r: setattr(r.replicas["a", CPU], "state", State.FREEING), "leased in a state"),
    (lambda r: r.leases.by_number.clear(), "lease"),
    (lambda r: setattr(r.replicas["a", CPU], "source", DISK), "source"),
    (
        lambda r: r.replicas["a", CPU].waiters.update({5: Waiter(5, 1, True, None)}),
        "sealed with a waiter",
    ),
    (lambda r: setattr(r.capacity.at[CPU], "capacity_bytes", 10), "capacity"),
    (lambda r: r.waiters.by_ticket.update({5: r.replicas["a", CPU]}), "waiters differ"),
    (lambda r: r.table.by_key.clear(), "the index by key has it at"),
    (lambda r: r.table.by_key["a"].update({CPU: Replica("a", CPU, 99)}), r"index by key has it at cpu \(99\)"),
    (lambda r: r.table.replicas.clear(), "the index by key has it at"),
    (lambda r: r.table.by_place[CPU].clear(), "the index by place"),
    (lambda r: r.capacity.at[CPU].shares.update({Share.IDLE: 7}), "the shares are"),
    (lambda r: setattr(r.capacity.at[CPU], "claimed_bytes", 7), "bytes claimed"),
    (lambda r: setattr(r.replicas["a", CPU], "keep_until_s", 7.0), "no alarm is set"),
    (lambda r: r._ledger.unawaited.begin(r.replicas["a", CPU], ()), "counted among fills that no request waits for"),
]
#: Entries of an index that no replica leads to: only the check of everything looks for them.
SURPLUS: list[tuple[Callable[[Residency], object], str]] = [
    (lambda r: r.table.by_key["a"].update({DISK: r.replicas["a", CPU]}), "the index by key has it at"),
    (lambda r: r.table.by_key.update({"b": {}}), "the index by key has it at"),
]


def test_validate_notices_a_fill_at_a_pace_that_a_request_waits_for() -> None:
    bench = Bench()
    bench.ask("a")
    bench.measured("a", 40)
    bench.residency._ledger.unawaited.begin(bench.residency.replicas["a", CPU], ())
    with pytest.raises(InvariantError, match="filled at a pace while a request waits"):
        bench.residency.validate()


@pytest.mark.parametrize(("damage", "rule"), DAMAGES + SURPLUS)
def test_validate_notices_damaged_books(damage: Callable[[Residency], object], rule: str) -> None:
    bench = Bench()
    bench.resident("a", 40)
    bench.opened("a")
    damage(bench.residency)
    with pytest.raises(InvariantError, match=rule):
        bench.residency.validate()


def in_pieces(bench: Bench) -> None:
    for piece in bench.residency.checks():
        piece()


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGES], ids=[rule for _, rule in DAMAGES])
def test_the_pieces_notice_damage_to_what_replicas_and_leases_lead_to(damage: Callable[[Residency], object]) -> None:
    bench = Bench()
    bench.resident("a", 40)
    bench.opened("a")
    in_pieces(bench)
    damage(bench.residency)
    with pytest.raises(
        InvariantError, match=r"^(a at cpu \(\w+\): .* Its story:|cpu: |leases differ: |waiters differ: )"
    ):
        in_pieces(bench)


def test_what_leaves_between_two_pieces_is_no_finding() -> None:
    bench = Bench(cpu_bytes=10_000)
    for number in range(150):
        bench.resident(f"image {number}", 1)
    leases = [bench.opened(f"image {number}", session=number) for number in range(150)]
    pieces = bench.residency.checks()
    next(pieces)()
    for number, lease in enumerate(leases):
        bench.feed(Closed, lease=lease, session=number)
        bench.feed(EvictRequested, key=f"image {number}", place=CPU, drain=False)
        bench.freed(f"image {number}")
    for piece in pieces:
        piece()


def test_a_broken_rule_is_told_with_the_story_of_its_replica() -> None:
    bench = Bench()
    bench.resident("a", 40)
    bench.opened("a")
    bench.residency.replicas["a", CPU].state = State.FREEING
    with pytest.raises(InvariantError, match=r"a at cpu \(freeing\): (?s:.*)absent -> sealed: adopted after a restart"):
        bench.residency.validate()


@given(st.lists(st.sampled_from(["ask", "measured", "filled", "end", "evict", "freed", "pin", "unpin"]), max_size=25))
def test_books_that_are_kept_by_events_break_no_rule(steps: list[str]) -> None:
    """The bench checks everything after each event; here the pieces must agree."""
    bench = Bench()
    for step in steps:
        state = bench.state("a")
        if step == "ask":
            bench.ask("a", deadline_in_s=100.0)
        elif step == "measured" and state is State.QUEUED:
            bench.measured("a", 40)
        elif step == "filled" and state is State.FILLING:
            bench.filled("a")
        elif step == "end":
            bench.feed(SessionEnded, session=1)
        elif step == "evict" and state is State.SEALED and ("a", CPU) not in bench.residency.capacity.pins:
            bench.feed(EvictRequested, key="a", place=CPU, drain=True)
        elif step == "freed" and state is State.FREEING:
            bench.freed("a")
        elif step in ("pin", "unpin"):
            bench.feed(PinChanged, key="a", place=CPU, pinned=step == "pin")
        in_pieces(bench)
