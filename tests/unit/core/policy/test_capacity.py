"""Capacity: what each place holds, what its readers need beside it, and which replica goes first."""

from __future__ import annotations

import pytest
from books import Bench, Devices, error_of, kinds
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import CapacityError, TooLargeError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, GPU
from trims.core.policy.capacity import Capacity
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import Replica, Share, State
from trims.core.residency.events import Fill, Free, Grant
from trims.core.residency.residency import Residency


def test_capacity_returns_only_when_the_tier_confirms() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("a", 100)
    bench.ask("b")
    assert kinds(bench.measured("b", 10)) == [Free]
    assert bench.residency.capacity.at[CPU].free_bytes == 0
    assert bench.state("b") is State.QUEUED
    assert kinds(bench.freed("a")) == [Fill]
    assert bench.residency.capacity.at[CPU].free_bytes == 90


def test_room_is_left_for_the_work_of_every_reader() -> None:
    bench = Devices()
    for key in ("a", "b"):
        bench.resident(key, 40, DISK)
    bench.want("a", 30)
    bench.filled("a", GPU)
    assert bench.residency.capacity.at[GPU].free_bytes == 100 - 40 - (30 - 10), "10 of 30 lie in the reserve"
    error = error_of(bench.want("b", 30, session=2))
    assert isinstance(error, CapacityError)
    assert "20 B kept for the work of sessions that read" in str(error)


def test_the_reserve_is_used_before_the_room_for_images() -> None:
    bench = Devices()
    bench.resident("a", 95, DISK)
    bench.want("a", 10)
    assert kinds(bench.filled("a", GPU)) == [Grant]
    assert bench.residency.capacity.at[GPU].free_bytes == 5


def test_an_image_that_leaves_no_room_for_one_reader_is_too_large() -> None:
    bench = Devices()
    bench.resident("a", 80, DISK)
    error = error_of(bench.want("a", 31))
    assert isinstance(error, TooLargeError)
    assert "21 B more than the reserve for the session that reads it" in str(error)
    assert kinds(bench.want("a", 30)) == [Fill]


def test_a_device_is_charged_in_the_units_in_which_it_gives_memory() -> None:
    places = {GPU: 100, CPU: 1000}
    bench = Bench()
    policies = {place: LeastRecentlyUsed() for place in places}
    bench.residency = Residency(places, policies, units={GPU: 20})
    for key in "abcdef":
        bench.resident(key, 3)
    for key in "abcde":
        bench.ask(key, place=GPU, lease=False)
        bench.filled(key, GPU)
    assert bench.residency.capacity.at[GPU].free_bytes == 0
    (free,) = bench.ask("f", place=GPU)
    assert isinstance(free, Free)
    assert (free.key, free.place) == ("a", GPU)
    (fill,) = bench.freed("a", GPU)
    assert isinstance(fill, Fill)
    assert fill.nbytes == 3, "the image's own length"


# -- the sums of one place --------------------------------------------------------------------------------------------


def a_capacity(nbytes: int = 1000, *, reserve_bytes: int = 0, unit_bytes: int = 1) -> Capacity:
    return Capacity({CPU: nbytes}, {CPU: LeastRecentlyUsed()}, {CPU: reserve_bytes}, {CPU: unit_bytes})


def a_replica(key: str, nbytes: int, state: State = State.SEALED, last_used_s: float = 0.0) -> Replica:
    return Replica(key, CPU, 1, state=state, nbytes=nbytes, last_used_s=last_used_s)


_STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(State), st.booleans(), st.booleans(), st.booleans()), max_size=30
)


@given(_STEPS)
def test_after_every_recount_the_shares_sum_up_to_what_the_replicas_take(
    steps: list[tuple[str, State, bool, bool, bool]],
) -> None:
    capacity = a_capacity(unit_bytes=8)
    replicas = {key: a_replica(key, nbytes, State.ABSENT) for key, nbytes in (("a", 8), ("b", 13), ("c", 100))}
    for key, state, leased, pinned, promised in steps:
        replica = replicas[key]
        replica.state = state
        replica.leases = {1: None} if leased else {}
        capacity.pin(key, CPU, pinned=pinned)
        capacity.recount(replica, promised=promised)
        assert not capacity.recount(replica, promised=promised), "a second look changes nothing"
    books = capacity.at[CPU]
    shares = dict.fromkeys(Share, 0)
    for replica in replicas.values():
        shares[replica.share] += replica.charged_bytes
        assert replica.charged_bytes % 8 == 0
    assert books.shares == shares
    assert capacity.charged == {CPU: sum(shares.values())}
    assert capacity.images == capacity.count_images(replicas.values())
    assert set(books.promised) == {key for key, it in replicas.items() if it.share is Share.PROMISED}


@pytest.mark.parametrize(
    ("state", "leased", "share"),
    [
        (State.QUEUED, False, Share.NONE),
        (State.FILLING, False, Share.FILLING),
        (State.SEALED, False, Share.IDLE),
        (State.SEALED, True, Share.READ),
        (State.DRAINING, True, Share.READ),
        (State.DRAINING, False, Share.LEAVING),
        (State.FREEING, False, Share.LEAVING),
    ],
)
def test_a_replica_counts_as_what_its_state_and_its_holders_say(state: State, leased: bool, share: Share) -> None:
    replica = a_replica("a", 10, state)
    replica.leases = {1: None} if leased else {}
    capacity = a_capacity()
    assert capacity.share_of(replica, promised=False) is share
    capacity.pin("a", CPU, pinned=True)
    assert capacity.share_of(replica, promised=False) is (Share.PINNED if share is Share.IDLE else share)


@pytest.mark.parametrize("holder", ["lease", "copy", "waiter"])
def test_a_sealed_replica_is_not_evictable_while_anything_holds_it(holder: str) -> None:
    capacity, replica = a_capacity(), a_replica("a", 10)
    capacity.recount(replica, promised=False)
    books = capacity.at[CPU]
    assert (books.evictable_bytes(spare_promised=False), books.next_victim(spare_promised=False)) == (10, "a")
    if holder == "lease":
        replica.leases[1] = None
    elif holder == "copy":
        replica.borrowers.add((DISK, 2))
    else:
        replica.waiters[1] = Waiter(1, 1, wants_lease=True, deadline_at_s=None)
    capacity.recount(replica, promised=False)
    assert replica.share is Share.READ
    assert (books.evictable_bytes(spare_promised=False), books.next_victim(spare_promised=False)) == (0, None)


def test_a_replica_that_is_promised_to_a_device_is_evicted_last_and_may_be_spared() -> None:
    capacity = a_capacity()
    for key, promised, last_used_s in (("promised", True, 1.0), ("idle", False, 2.0)):
        capacity.recount(a_replica(key, 10, last_used_s=last_used_s), promised=promised)
    books = capacity.at[CPU]
    assert (books.evictable_bytes(spare_promised=True), books.evictable_bytes(spare_promised=False)) == (10, 20)
    assert books.next_victim(spare_promised=False) == "idle", "though the other was used longer ago"
    books.policy.busy("idle")
    assert books.next_victim(spare_promised=False) == "promised"
    assert books.next_victim(spare_promised=True) is None


def test_a_claim_takes_coming_room_once_and_gives_it_back() -> None:
    capacity = a_capacity(100)
    leaving, queued = a_replica("leaving", 100, State.FREEING), a_replica("queued", 0, State.QUEUED)
    capacity.recount(leaving, promised=False)
    books = capacity.at[CPU]
    assert (books.free_bytes, books.coming_bytes) == (0, 100)
    for claimed in (60, 60, 40, 0):
        capacity.claim(queued, claimed)
        assert (books.claimed_bytes, queued.claimed_bytes, books.coming_bytes) == (claimed, claimed, 100 - claimed)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_what_a_replica_needs_is_its_units_and_the_work_beyond_the_reserve(
    nbytes: int, present_bytes: int, more_bytes: int
) -> None:
    books = a_capacity(reserve_bytes=100, unit_bytes=16).at[CPU]
    books.workspace_bytes = present_bytes
    replica = a_replica("a", nbytes, State.QUEUED)
    replica.workspace_bytes = more_bytes
    units = books.takes(nbytes)
    assert units % 16 == 0
    assert nbytes <= units < nbytes + 16
    assert books.need_of(replica) == units + max(0, present_bytes + more_bytes - 100) - max(0, present_bytes - 100)
    assert books.least_need_of(replica) == units + max(0, more_bytes - 100)
