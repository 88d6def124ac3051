from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trims.core.lease import Waiter
from trims.core.place import CPU
from trims.core.replica import Replica, State
from trims.core.residency.ledger import Waiters

# Waiters: which waits for which replica, by ticket, by session and by replica.


def a_replica(generation: int = 1) -> Replica:
    return Replica("a", CPU, generation, state=State.QUEUED)


def test_a_waiter_that_leaves_is_returned_once_with_what_it_waited_for() -> None:
    waiters, replica = Waiters(), a_replica()
    waiter = Waiter(7, 1, True, None)
    waiters.join(replica, waiter)
    assert waiters.leave(7) == (replica, waiter)
    assert waiters.leave(7) is None
    assert (replica.waiters, replica.impatient, waiters.by_ticket, waiters.sessions) == ({}, {}, {}, {})


def test_a_replica_counts_promotions_and_waiters_without_a_deadline_apart() -> None:
    waiters, replica = Waiters(), a_replica()
    for waiter in (Waiter(1, 1, True, None), Waiter(2, 1, True, 9.0), Waiter(-3, None, False, None)):
        waiters.join(replica, waiter)
    assert (list(replica.waiters), list(replica.impatient), replica.promotions) == ([1, 2, -3], [1], 1)
    waiters.leave(-3)
    waiters.leave(1)
    assert (list(replica.waiters), list(replica.impatient), replica.promotions) == ([2], [], 0)


def test_a_request_without_a_session_is_no_session_s() -> None:
    waiters = Waiters()
    waiters.join(a_replica(), Waiter(1, None, False, None))
    assert waiters.sessions == {}
    assert waiters.leave(1) is not None


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 3)), max_size=60))
def test_tickets_of_a_session_come_in_the_order_of_their_arrival(steps: list[tuple[int, int]]) -> None:
    """A ticket that waits leaves; one that does not joins, for the session of the step."""
    waiters, replicas = Waiters(), [a_replica(1), a_replica(2)]
    waiting: dict[int, int] = {}
    for ticket, session in steps:
        if ticket in waiting:
            del waiting[ticket]
            assert waiters.leave(ticket) is not None
        else:
            waiting[ticket] = session
            waiters.join(replicas[ticket % 2], Waiter(ticket, session, True, None))
        for each in (1, 2, 3):
            assert waiters.of_session(each) == [it for it, owner in waiting.items() if owner == each]
    assert set(waiters.by_ticket) == set(waiting)
    assert [sorted(replica.waiters) for replica in replicas] == [
        sorted(it for it in waiting if it % 2 == odd) for odd in (0, 1)
    ]
    assert set(waiters.sessions) == set(waiting.values())
