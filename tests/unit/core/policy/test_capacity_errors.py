"""Refusals: each names the culprit, the numbers and the remedy."""

from __future__ import annotations

import pytest

from trims.core.place import CPU, DISK, GPU
from trims.core.policy import capacity_errors
from trims.core.policy.capacity import Capacity, PlaceBooks
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import Replica, Share, State


def books_of(nbytes: int, reserve_bytes: int = 0) -> PlaceBooks:
    return Capacity({GPU: nbytes}, {GPU: LeastRecentlyUsed()}, {GPU: reserve_bytes}).at[GPU]


def a_replica(state: State = State.QUEUED, nbytes: int = 2048) -> Replica:
    return Replica("a" * 64, GPU, 1, state=state, nbytes=nbytes)


def test_an_image_larger_than_its_tier_is_told_both_sizes_and_what_its_reader_needs() -> None:
    replica = a_replica()
    assert str(capacity_errors.too_large(books_of(1024), replica)) == (
        "the image takes 2.0 KiB (2048 bytes); the gpu:0 tier has a capacity of 1.0 KiB in all; raise the setting "
        "gpu_share"
    )
    replica.workspace_bytes = 3072
    assert "(2048 bytes), and 2.0 KiB more than the reserve" in str(
        capacity_errors.too_large(books_of(1024, 1024), replica)
    )


def test_a_lack_of_room_names_every_use_of_the_room_that_is_not_nothing() -> None:
    books = books_of(100)
    assert "100 B free of 100 B. Nothing was evicted" in str(capacity_errors.no_room(books, a_replica()))
    books.charged_bytes = 60
    books.shares.update({Share.READ: 10, Share.PINNED: 20, Share.FILLING: 30})
    books.claimed_bytes, books.workspace_bytes = 5, 15
    error = capacity_errors.no_room(books, a_replica())
    told = (
        "no room at gpu:0: 2.0 KiB needed; 25 B free of 100 B, 10 B leased, 20 B pinned, 30 B being filled, "
        "5 B on its way back to earlier requests, 15 B kept for the work of sessions that read. Nothing was evicted."
    )
    assert str(error).startswith(told)
    assert str(error).endswith("set a deadline to wait for room")
    assert error.retryable


def test_a_lack_of_room_names_first_a_copy_that_is_being_evicted_and_would_serve() -> None:
    leaving = Replica("a" * 64, DISK, 1, state=State.DRAINING, leases={7: None})
    told = str(capacity_errors.no_room(books_of(100), a_replica(), leaving))
    assert told.startswith(
        "the model is being evicted from disk and serves no new reader there, until its last one (1 "
    )
    assert "; close that, or make room at gpu:0: no room at gpu:0: 2.0 KiB needed;" in told


def test_room_that_readers_work_has_taken_is_told_as_nothing_free() -> None:
    books = books_of(100)
    books.workspace_bytes = 150
    assert "; 0 B free of 100 B, 150 B kept for the work" in str(capacity_errors.no_room(books, a_replica()))


def test_room_that_is_reserved_names_the_size_of_the_earlier_request() -> None:
    error = capacity_errors.reserved(books_of(10_000), a_replica(nbytes=512), a_replica(nbytes=4096))
    assert "512 B needed; what comes free is kept for an earlier request of 4.0 KiB" in str(error)


def test_a_missing_place_is_named_with_the_places_there_are() -> None:
    error = capacity_errors.no_such_place(GPU, [CPU, DISK])
    assert "no tier gpu:0; it has cpu, disk." in str(error)
    assert "`trims doctor`" in str(error)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        (State.QUEUED, "evict it once its load has ended"),
        (State.FILLING, "evict it once its load has ended"),
        (State.FREEING, "it leaves by itself"),
    ],
)
def test_a_replica_without_readers_is_in_use_because_of_its_state(state: State, remedy: str) -> None:
    assert capacity_errors.why_in_use(a_replica(state)) == f"the replica at gpu:0 is {state.value}; {remedy}"


def test_a_replica_in_use_counts_its_leases_and_copies_and_names_the_remedy() -> None:
    replica = a_replica(State.SEALED)
    replica.leases, replica.borrowers = {1: None, 2: None}, {(CPU, 4)}
    told = capacity_errors.why_in_use(replica)
    assert "2 lease(s) and 1 running copies" in told
    assert told.endswith("close them, or evict with drain")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (State.FILLING, "it was loaded to gpu:0 (2.0 KiB); the load goes on, ask again"),
        (State.QUEUED, "it waited for room at gpu:0 (2.0 KiB); ask again, and wait longer"),
        (State.DRAINING, "its copy at gpu:0, which is evicted, waited for its last reader; ask again, and wait longer"),
        (State.FREEING, "the memory of its evicted copy at gpu:0 was given back; ask again, and wait longer"),
    ],
)
def test_a_late_answer_tells_what_was_waited_for_and_whether_it_goes_on(state: State, told: str) -> None:
    assert capacity_errors.why_late(a_replica(state)) == f"the deadline passed while {told}"


def test_a_late_answer_about_an_image_of_unknown_size_gives_no_size() -> None:
    told = capacity_errors.why_late(a_replica(nbytes=0))
    assert told == (
        "the deadline passed while its artifact was read to find its size, for gpu:0; ask again, and wait longer"
    )
