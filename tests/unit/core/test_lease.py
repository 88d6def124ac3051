"""Leases: their numbers, and which session has which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.lease import Lease, Waiter
from trims.core.place import CPU
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.residency.events import Adopted, Grant, Requested
from trims.core.residency.ledger import Ledger
from trims.core.residency.residency import Residency


def _ledger(first_lease: int = 1) -> Ledger:
    return Ledger({CPU: 100}, {CPU: LeastRecentlyUsed()}, {}, {}, (), first_lease=first_lease, max_images=10)


def _grant(ledger: Ledger, session: int) -> Lease:
    """A lease of the image `a`, which is sealed."""
    replica = ledger.table.find("a", CPU)
    if replica is None:
        replica = ledger.table.add("a", CPU)
        replica.nbytes = 10
        ledger.seal(replica, 0.0, "adopted after a restart")
    ledger.instructions.written.clear()
    ledger.grant(replica, Waiter(1, session, True, None), session, 1.0, warm=True)
    (grant,) = ledger.instructions.written
    assert isinstance(grant, Grant)
    return grant.lease


def test_lease_numbers_begin_where_the_daemon_says() -> None:
    residency = Residency({CPU: 100}, {CPU: LeastRecentlyUsed()}, first_lease=7000)
    residency.handle(Adopted(at_s=0.0, key="a", place=CPU, nbytes=10))
    out = residency.handle(Requested(at_s=1.0, key="a", place=CPU, waiter=Waiter(1, 1, True, None)))
    assert [it.lease.number for it in out if isinstance(it, Grant)] == [7000]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=40))
def test_leases_are_found_by_session_in_the_order_of_their_grants(steps: list[tuple[int, int]]) -> None:
    """Each step grants one lease to a session, and ends one of the leases that are held, if there are so many."""
    ledger, held = _ledger(), list[Lease]()
    leases = ledger.leases
    for session, ends in steps:
        held.append(_grant(ledger, session))
        if ends < len(held):
            leases.end(held.pop(ends))
        for each in (1, 2, 3):
            assert leases.of_session(each) == [lease for lease in held if lease.session == each]
        assert leases.by_number == {lease.number: lease for lease in held}
    assert set(leases.sessions) == {lease.session for lease in held}, "a session without leases is forgotten"


def test_no_two_leases_have_the_same_number_though_the_first_has_ended() -> None:
    ledger = _ledger(first_lease=10)
    first = _grant(ledger, 1)
    ledger.leases.end(first)
    assert [first.number, _grant(ledger, 1).number] == [10, 11]


def test_a_lease_ends_once() -> None:
    ledger = _ledger()
    lease = _grant(ledger, 1)
    ledger.leases.end(lease)
    with pytest.raises(KeyError):
        ledger.leases.end(lease)


@pytest.mark.parametrize(
    ("waiter", "reader", "promotion", "impatient"),
    [
        (Waiter(1, 5, True, None), 5, False, True),
        (Waiter(1, 5, True, 9.0), 5, False, False),
        (Waiter(1, 5, False, None), None, False, True),
        (Waiter(1, None, False, 9.0), None, False, False),
        (Waiter(-1, None, False, None), None, True, False),
    ],
    ids=["open", "open with a deadline", "prefetch", "prefetch with a deadline", "promotion"],
)
def test_a_waiter_tells_its_reader_and_its_patience(
    waiter: Waiter, reader: int | None, promotion: bool, impatient: bool
) -> None:
    assert (waiter.reader, waiter.is_promotion, waiter.is_impatient) == (reader, promotion, impatient)
