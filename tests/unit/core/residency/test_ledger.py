"""The ledger: leases, the work of their sessions, copies, and replicas that leave."""

from __future__ import annotations

import pytest
from books import OTHER, Devices, error_of, kinds
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import CapacityError, DeviceLostError, InternalError
from trims.core.lease import Lease, Waiter
from trims.core.place import CPU, DISK, GPU, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import Replica, Share, State
from trims.core.residency.events import (
    Closed,
    EvictRequested,
    Fill,
    FillFailed,
    Free,
    Grant,
    WaiterLeft,
    WorkspaceKnown,
)
from trims.core.residency.ledger import Ledger, Waiters

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


def test_the_last_lease_of_a_draining_replica_frees_its_share_though_a_copy_runs() -> None:
    """The running copy delays the room, but no lease does: what waits for it may claim it."""
    bench = Devices()
    bench.resident("a", 40, DISK)
    (grant,) = bench.want("a", 0, place=DISK)
    assert isinstance(grant, Grant)
    bench.ask("a", place=CPU)
    replica = bench.residency.find("a", DISK)
    assert replica is not None
    bench.feed(EvictRequested, key="a", place=DISK, drain=True)
    assert (replica.state, replica.share, bool(replica.borrowers)) == (State.DRAINING, Share.READ, True)
    bench.feed(Closed, lease=grant.lease.number, session=grant.lease.session)
    assert (replica.state, replica.share) == (State.DRAINING, Share.LEAVING)
    bench.residency.validate()


def test_a_session_needs_its_workspace_once_however_often_it_opens() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU)
    grants = [bench.want("a", 20, session=session)[0] for session in (1, 1, 2)]
    assert bench.residency.capacity.at[GPU].workspace_bytes == 40
    for grant, left in zip(grants, (40, 20, 0), strict=True):
        assert isinstance(grant, Grant)
        bench.feed(Closed, lease=grant.lease.number, session=grant.lease.session)
        assert bench.residency.capacity.at[GPU].workspace_bytes == left


def test_a_workspace_measured_while_a_session_reads_counts_from_then_on() -> None:
    bench = Devices()
    bench.resident("idle", 40, GPU, CPU)
    bench.resident("a", 50, GPU)
    assert kinds(bench.want("a", 0)) == [Grant]
    (free,) = bench.feed(WorkspaceKnown, key="a", nbytes=25)
    assert isinstance(free, Free)
    assert {place: books.workspace_bytes for place, books in bench.residency.capacity.at.items()} == {
        CPU: 0,
        DISK: 0,
        GPU: 25,
        OTHER: 0,
    }


def test_the_work_of_a_waiter_is_counted_while_its_image_is_filled() -> None:
    bench = Devices()
    for key in ("a", "b"):
        bench.resident(key, 40, DISK)
    assert kinds(bench.want("a", 30)) == [Fill]
    assert isinstance(error_of(bench.want("b", 10, session=2)), CapacityError), "it would take what a's reader needs"
    assert kinds(bench.filled("a", GPU)) == [Grant]
    assert bench.residency.capacity.at[GPU].workspace_bytes == 30


def test_every_session_that_waits_for_a_fill_is_counted_until_it_leaves() -> None:
    bench = Devices()
    bench.resident("a", 40, DISK)
    bench.ask("a", place=GPU, lease=False)
    bench.feed(WorkspaceKnown, key="a", nbytes=30)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 0, "a prefetch reads nothing"
    bench.want("a", 30, session=1)
    bench.want("a", 30, session=1)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 30, "one session, one time its work"
    bench.want("a", 30, session=2)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 60
    bench.feed(WaiterLeft, ticket=bench.ticket)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 30
    bench.filled("a", GPU)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 30


def test_a_fill_that_fails_gives_back_what_was_foreseen() -> None:
    bench = Devices()
    bench.resident("a", 40, DISK)
    bench.want("a", 30)
    error = DeviceLostError("gone")
    bench.feed(FillFailed, key="a", place=GPU, generation=bench.generation("a", GPU), error=error)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 0
    assert bench.residency.capacity.at[GPU].free_bytes == 100


# -- the steps of the books, one by one --------------------------------------------------------------------------------


def a_ledger() -> Ledger:
    places = (CPU, DISK, GPU)
    policies = {place: LeastRecentlyUsed() for place in places}
    return Ledger(dict.fromkeys(places, 100), policies, {}, {}, [], first_lease=1, max_images=99)


def sealed(ledger: Ledger, place: Place = CPU, keep_alive_s: float | None = None) -> Replica:
    replica = ledger.table.add("a", place)
    replica.nbytes, replica.keep_alive_s = 40, keep_alive_s
    ledger.seal(replica, 1.0, "adopted after a restart")
    return replica


def leased(ledger: Ledger, replica: Replica, at_s: float = 2.0) -> Lease:
    ledger.grant(replica, Waiter(1, 1, True, None), 1, at_s, warm=True)
    (lease,) = ledger.leases.of_session(1)
    return lease


def test_a_replica_that_a_lease_or_a_copy_holds_is_never_freed() -> None:
    ledger = a_ledger()
    replica = sealed(ledger)
    lease = leased(ledger, replica)
    with pytest.raises(InternalError, match=r"at cpu was to be freed, and .* 1 lease\(s\)"):
        ledger.free(replica, 3.0, "a mistake", evicted=False)
    ledger.end_lease(lease, 4.0)
    ledger.lend(replica, ledger.table.add("a", GPU))
    with pytest.raises(InternalError, match="1 running copies"):
        ledger.free(replica, 5.0, "a mistake", evicted=True)
    assert replica.state is State.SEALED


def test_a_step_out_of_the_leasable_states_with_a_lease_is_a_bug_that_is_told() -> None:
    ledger = a_ledger()
    replica = sealed(ledger)
    leased(ledger, replica)
    with pytest.raises(InternalError, match="at cpu went to freeing with leases"):
        ledger.step(replica, State.FREEING, 3.0, "a mistake")


def test_a_use_puts_off_the_end_of_keep_alive_without_a_second_alarm() -> None:
    ledger = a_ledger()
    replica = sealed(ledger, keep_alive_s=10.0)
    assert (replica.keep_until_s, ledger.due.next_s()) == (11.0, 11.0)
    ledger.touch(replica, 5.0)
    assert (replica.keep_until_s, replica.alarm_s) == (15.0, 11.0)
    assert ledger.due.pop_due(11.0) == replica.id
    assert ledger.due.next_s() is None
    replica.keep_alive_s = 2.0
    ledger.touch(replica, 6.0)
    assert ledger.due.next_s() == 8.0, "an end that comes earlier has an alarm of its own"


@pytest.mark.parametrize("why", ["pinned", "leased", "lent", "lazy"])
def test_keep_alive_does_not_run_while_something_keeps_the_replica(why: str) -> None:
    ledger = a_ledger()
    replica = sealed(ledger, keep_alive_s=None if why == "lazy" else 10.0)
    if why == "pinned":
        ledger.capacity.pin("a", CPU, pinned=True)
    elif why == "leased":
        leased(ledger, replica)
    elif why == "lent":
        ledger.lend(replica, ledger.table.add("a", GPU))
    ledger.touch(replica, 5.0)
    assert replica.keep_until_s is None


def test_a_source_is_read_while_it_is_lent_and_leaves_after_the_copy_if_it_has_to() -> None:
    ledger = a_ledger()
    source, target = sealed(ledger, DISK), ledger.table.add("a", CPU)
    ledger.lend(source, target)
    assert (source.share, target.source) == (Share.READ, DISK)
    ledger.retire(source, 2.0, "evicted on request")
    assert source.state is State.DRAINING
    ledger.return_source(target, 3.0)
    assert (source.state, target.source) == (State.FREEING, None)
    assert [type(each) for each in ledger.instructions.written].count(Free) == 1


@pytest.mark.parametrize("pinned", [False, True])
def test_an_eager_replica_is_freed_when_it_is_let_go_of_unless_it_is_pinned(pinned: bool) -> None:
    ledger = a_ledger()
    replica = sealed(ledger, keep_alive_s=0.0)
    ledger.capacity.pin("a", CPU, pinned=pinned)
    assert ledger.end_lease(leased(ledger, replica), 3.0) is replica
    assert replica.state is (State.SEALED if pinned else State.FREEING)
    assert replica.share is (Share.PINNED if pinned else Share.LEAVING)


def test_waiters_are_taken_in_the_order_of_arrival_and_are_due_no_more() -> None:
    ledger = a_ledger()
    replica = ledger.table.add("a", CPU)
    waiters = [Waiter(ticket, 1, True, deadline_at_s) for ticket, deadline_at_s in ((3, 50.0), (1, None), (2, 40.0))]
    for waiter in waiters:
        ledger.join(replica, waiter)
    assert ledger.due.next_s() == 40.0
    assert ledger.leave(2) is replica
    assert ledger.leave(2) is None
    assert ledger.due.next_s() == 50.0
    assert ledger.take(replica) == waiters[:2]
    assert (ledger.due.next_s(), ledger.waiters.by_ticket) == (None, {})


def test_a_replica_that_is_removed_gives_its_claim_back_and_is_absent() -> None:
    ledger = a_ledger()
    replica = ledger.table.add("a", CPU)
    ledger.step(replica, State.QUEUED, 1.0, "first waiter")
    ledger.capacity.claim(replica, 30)
    ledger.remove(replica, 2.0, "last waiter gone")
    assert ledger.table.find("a", CPU) is None
    assert ledger.capacity.at[CPU].claimed_bytes == 0
    assert replica.state is State.ABSENT
