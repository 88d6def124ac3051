"""Residency, event by event: what goes in, which instructions come out."""

from __future__ import annotations

import pytest
from books import Bench, error_of, kinds

from trims.core.errors import (
    ArtifactError,
    CapacityError,
    DeadlineError,
    DrainingError,
    InternalError,
    InUseError,
    InvalidTransitionError,
    InvariantError,
    NotSupportedError,
    TooLargeError,
)
from trims.core.events import (
    Abandon,
    Adopted,
    Closed,
    DrainRequested,
    EvictRequested,
    Fill,
    Filled,
    FillFailed,
    Free,
    Freed,
    Grant,
    Measure,
    Measured,
    MeasureFailed,
    PinChanged,
    Ready,
    Refuse,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
)
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, Place
from trims.core.policy import LeastRecentlyUsed
from trims.core.replica import Replica, Share, State
from trims.core.residency import Residency


def test_a_cold_open_is_measured_then_filled_then_granted() -> None:
    bench = Bench()
    assert kinds(bench.ask("a")) == [Measure]
    (fill,) = bench.measured("a", 40)
    assert isinstance(fill, Fill)
    assert (fill.source, fill.nbytes) == (None, 40)
    (grant,) = bench.filled("a")
    assert isinstance(grant, Grant)
    assert (grant.nbytes, grant.warm) == (40, False)


def test_an_open_of_a_sealed_replica_is_granted_at_once_and_warm() -> None:
    bench = Bench()
    bench.resident("a", 40)
    (grant,) = bench.ask("a")
    assert isinstance(grant, Grant)
    assert grant.warm


def test_opens_during_a_fill_join_it_and_are_all_granted_at_its_end() -> None:
    bench = Bench()
    bench.ask("a", session=1)
    bench.measured("a", 40)
    assert bench.ask("a", session=2) == []
    assert bench.ask("a", session=3) == []
    grants = bench.filled("a")
    assert kinds(grants) == [Grant, Grant, Grant]
    assert {grant.lease.session for grant in grants if isinstance(grant, Grant)} == {1, 2, 3}


def test_a_prefetch_is_answered_without_a_lease() -> None:
    bench = Bench()
    bench.ask("a", lease=False, session=None)
    bench.measured("a", 40)
    (ready,) = bench.filled("a")
    assert isinstance(ready, Ready)
    assert not bench.residency.leases.by_number


def test_a_fill_reads_from_the_fastest_sealed_replica_and_borrows_it() -> None:
    bench = Bench()
    bench.resident("a", 40, DISK)
    (fill,) = bench.ask("a")
    assert isinstance(fill, Fill)
    assert fill.source == DISK
    with pytest.raises(InUseError):
        bench.feed(EvictRequested, key="a", place=DISK, drain=False)
    bench.filled("a")
    assert kinds(bench.feed(EvictRequested, key="a", place=DISK, drain=False)) == [Free]


def test_room_is_made_by_evicting_what_was_used_longest_ago() -> None:
    bench = Bench(cpu_bytes=100)
    for key in ("a", "b"):
        bench.resident(key, 50)
    lease = bench.opened("a")
    bench.feed(Closed, lease=lease, session=1)
    bench.ask("c")
    (free,) = bench.measured("c", 50)
    assert isinstance(free, Free)
    assert (free.key, free.evicted) == ("b", True)
    assert kinds(bench.freed("b")) == [Fill]


def test_capacity_returns_only_when_the_tier_confirms() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("a", 100)
    bench.ask("b")
    assert kinds(bench.measured("b", 10)) == [Free]
    assert bench.residency.capacity.at[CPU].free_bytes == 0
    assert bench.state("b") is State.QUEUED
    assert kinds(bench.freed("a")) == [Fill]
    assert bench.residency.capacity.at[CPU].free_bytes == 90


def test_nothing_is_evicted_when_even_everything_idle_would_not_do() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("idle", 40)
    bench.resident("held", 60)
    bench.opened("held")
    bench.ask("c")
    out = bench.measured("c", 50)
    assert kinds(out) == [Refuse, Abandon]
    error = error_of(out)
    assert isinstance(error, CapacityError)
    assert "50 B needed; 0 B free of 100 B, 60 B leased" in str(error)
    assert bench.state("idle") is State.SEALED


def test_an_open_with_a_deadline_waits_for_a_lease_to_end() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 100)
    lease = bench.opened("held")
    bench.ask("c", session=2, deadline_in_s=100.0)
    assert bench.measured("c", 50) == []
    assert kinds(bench.feed(Closed, lease=lease, session=1)) == [Free]
    assert kinds(bench.freed("held")) == [Fill]


def test_a_deadline_that_passes_while_waiting_for_room_gives_the_numbers() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 100)
    bench.opened("held")
    bench.ask("c", session=2, deadline_in_s=1.0)
    bench.measured("c", 50)
    bench.now += 10.0
    out = bench.feed(Tick)
    assert isinstance(error_of(out), CapacityError)
    assert kinds(out) == [Refuse, Abandon]


def test_a_deadline_that_passes_during_a_load_says_so_and_the_load_is_finished() -> None:
    bench = Bench()
    bench.ask("a", deadline_in_s=1.0)
    bench.measured("a", 40)
    bench.now += 10.0
    assert isinstance(error_of(bench.feed(Tick)), DeadlineError)
    assert bench.filled("a") == []
    assert bench.state("a") is State.SEALED


def test_an_image_larger_than_the_tier_is_refused_for_good() -> None:
    bench = Bench(cpu_bytes=100)
    bench.ask("a", deadline_in_s=100.0)
    error = error_of(bench.measured("a", 101))
    assert isinstance(error, TooLargeError)
    assert not error.retryable


def behind_a_large_one(bench: Bench) -> int:
    """Sixty of a hundred bytes are leased, and an image of ninety waits for them; returns the lease."""
    bench.resident("held", 60)
    lease = bench.opened("held")
    bench.ask("large", session=2, deadline_in_s=1000.0)
    assert bench.measured("large", 90) == []
    return lease


def test_an_image_that_waits_for_leases_is_overtaken_by_at_most_its_own_size() -> None:
    bench = Bench(cpu_bytes=100)
    behind_a_large_one(bench)
    for turn in range(9):
        bench.ask(f"small {turn}", session=3)
        assert Fill in kinds(bench.measured(f"small {turn}", 10))
        bench.filled(f"small {turn}")
        bench.feed(SessionEnded, session=3)
        bench.feed(EvictRequested, key=f"small {turn}", place=CPU, drain=False)
        bench.freed(f"small {turn}")
    bench.ask("one more", session=3)
    error = error_of(bench.measured("one more", 10))
    assert isinstance(error, CapacityError)
    assert "kept for an earlier request of 90 B" in str(error)


def test_a_reservation_ends_so_that_one_patient_waiter_cannot_hold_up_a_place() -> None:
    bench = Bench(cpu_bytes=100)
    behind_a_large_one(bench)
    replica = bench.residency.find("large", CPU)
    assert replica is not None
    replica.overtaken_bytes = 85
    bench.ask("patient", session=3, deadline_in_s=1000.0)
    assert bench.measured("patient", 10) == []
    until_s = bench.residency.next_due_s()
    assert until_s is not None
    bench.now = until_s
    assert kinds(bench.feed(Tick)) == [Fill]


def test_room_that_is_coming_is_kept_for_the_replica_that_had_it_evicted() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("idle", 90)
    bench.ask("first", session=1)
    assert kinds(bench.measured("first", 90)) == [Free]
    bench.ask("second", session=2)
    assert isinstance(error_of(bench.measured("second", 20)), CapacityError)
    bench.ask("third", session=3)
    assert kinds(bench.measured("third", 10)) == [Fill]
    assert [it.key for it in bench.freed("idle") if isinstance(it, Fill)] == ["first"]


def test_the_oldest_image_in_line_gets_the_room_that_leases_leave() -> None:
    bench = Bench(cpu_bytes=100)
    lease = behind_a_large_one(bench)
    bench.ask("later", session=3, deadline_in_s=1000.0)
    assert bench.measured("later", 70) == []
    assert kinds(bench.feed(Closed, lease=lease, session=1)) == [Free]
    assert [fill.key for fill in bench.freed("held") if isinstance(fill, Fill)] == ["large"]


def test_an_image_still_being_measured_holds_nobody_up() -> None:
    bench = Bench()
    bench.ask("slow")
    bench.ask("quick")
    assert kinds(bench.measured("quick", 10)) == [Fill]


def test_pinned_replicas_are_never_victims() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("pinned", 60)
    bench.feed(PinChanged, key="pinned", place=CPU, pinned=True)
    bench.ask("c")
    error = error_of(bench.measured("c", 50))
    assert "60 B pinned" in str(error)
    with pytest.raises(InUseError, match="pinned"):
        bench.feed(EvictRequested, key="pinned", place=CPU, drain=False)


def test_unpinning_lets_waiting_opens_in() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("pinned", 60)
    bench.feed(PinChanged, key="pinned", place=CPU, pinned=True)
    bench.ask("c", deadline_in_s=100.0)
    bench.measured("c", 50)
    assert kinds(bench.feed(PinChanged, key="pinned", place=CPU, pinned=False)) == [Free]


def test_a_failed_fill_answers_everybody_who_waited_with_its_error() -> None:
    bench = Bench()
    bench.ask("a", session=1)
    bench.measured("a", 40)
    bench.ask("a", session=2)
    out = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=ArtifactError("torn"))
    assert kinds(out) == [Refuse, Refuse]
    assert bench.residency.capacity.at[CPU].free_bytes == 100


def test_a_measurement_that_fails_after_the_image_came_by_another_way_ends_nothing() -> None:
    """The seen case: opened at disk, then at cpu while its conversion is planned; the copy from disk overtakes it."""
    bench = Bench()
    bench.ask("a", session=1)
    late = bench.measurement("a")
    (fill,) = bench.feed(Adopted, key="a", place=DISK, nbytes=40)
    assert isinstance(fill, Fill)
    assert fill.source == DISK
    assert bench.ask("a", session=2) == []
    assert bench.feed(MeasureFailed, error=ArtifactError("the conversion was stopped"), **late) == []
    assert bench.state("a") is State.FILLING
    assert kinds(bench.filled("a")) == [Grant, Grant]


@pytest.mark.parametrize("fails", [False, True])
def test_a_measurement_that_is_not_running_any_more_says_nothing(fails: bool) -> None:
    bench = Bench()
    bench.ask("a")
    facts = {**bench.measurement("a"), "measurement": 99}
    kind, more = (MeasureFailed, {"error": ArtifactError("torn")}) if fails else (Measured, {"nbytes": 7})
    assert bench.feed(kind, **more, **facts) == []
    assert kinds(bench.measured("a", 40)) == [Fill]


def test_completions_that_come_twice_change_nothing() -> None:
    bench = Bench()
    bench.ask("a")
    bench.measured("a", 40)
    facts = {"key": "a", "place": CPU, "generation": bench.generation("a")}
    (grant,) = bench.filled("a")
    assert isinstance(grant, Grant)
    assert bench.filled("a") == []
    assert bench.feed(FillFailed, error=ArtifactError("late"), **facts) == []
    assert bench.feed(Freed, **facts) == []
    assert bench.state("a") is State.SEALED


def test_a_failed_measurement_leaves_nothing() -> None:
    bench = Bench()
    bench.ask("a")
    out = bench.feed(MeasureFailed, error=ArtifactError("torn"), **bench.measurement("a"))
    assert kinds(out) == [Refuse, Abandon]
    assert bench.state("a") is State.ABSENT


def test_completions_of_an_earlier_incarnation_are_ignored() -> None:
    bench = Bench()
    bench.ask("a")
    stale = bench.generation("a")
    bench.feed(MeasureFailed, error=ArtifactError("torn"), **bench.measurement("a"))
    bench.ask("a")
    for kind, more in ((Measured, {"nbytes": 1, "measurement": 1}), (Filled, {"cost_s": 1.0}), (Freed, {})):
        assert bench.feed(kind, key="a", place=CPU, generation=stale, **more) == []
    assert bench.state("a") is State.QUEUED


def test_closing_twice_or_anothers_lease_changes_nothing() -> None:
    bench = Bench()
    bench.resident("a", 40)
    lease = bench.opened("a", session=1)
    bench.feed(Closed, lease=lease, session=2)
    assert set(bench.residency.leases.by_number) == {lease}
    for _ in range(2):
        bench.feed(Closed, lease=lease, session=1)
    assert not bench.residency.leases.by_number


def test_the_end_of_a_session_closes_its_leases_and_drops_its_requests() -> None:
    bench = Bench()
    bench.resident("a", 40)
    bench.opened("a", session=1)
    bench.opened("a", session=1)
    bench.opened("a", session=2)
    bench.ask("b", session=1)
    out = bench.feed(SessionEnded, session=1)
    assert kinds(out) == [Abandon]
    assert {lease.session for lease in bench.residency.leases.by_number.values()} == {2}
    assert bench.state("b") is State.ABSENT


def test_a_fill_whose_waiters_all_left_is_finished_and_kept() -> None:
    bench = Bench()
    bench.ask("a", session=1)
    bench.measured("a", 40)
    bench.feed(SessionEnded, session=1)
    assert bench.filled("a") == []
    assert bench.state("a") is State.SEALED


def test_a_waiter_that_leaves_the_queue_makes_way() -> None:
    bench = Bench()
    bench.ask("a")
    assert kinds(bench.feed(WaiterLeft, ticket=1)) == [Abandon]
    assert bench.feed(WaiterLeft, ticket=1) == []


def test_an_eviction_refuses_a_leased_replica_unless_it_drains() -> None:
    bench = Bench()
    bench.resident("a", 40)
    lease = bench.opened("a")
    with pytest.raises(InUseError, match="1 lease"):
        bench.feed(EvictRequested, key="a", place=CPU, drain=False)
    assert bench.feed(EvictRequested, key="a", place=CPU, drain=True) == []
    assert bench.state("a") is State.DRAINING
    assert kinds(bench.feed(Closed, lease=lease, session=1)) == [Free]


def test_an_open_of_a_draining_replica_is_refused_or_waits_for_the_next_one() -> None:
    bench = Bench()
    bench.resident("a", 40)
    lease = bench.opened("a")
    bench.feed(EvictRequested, key="a", place=CPU, drain=True)
    assert isinstance(error_of(bench.ask("a", session=2)), InUseError)
    assert bench.ask("a", session=3, deadline_in_s=100.0) == []
    assert kinds(bench.feed(Closed, lease=lease, session=1)) == [Free]
    assert kinds(bench.freed("a")) == [Measure]
    assert kinds(bench.measured("a", 40)) == [Fill]
    (grant,) = bench.filled("a")
    assert isinstance(grant, Grant)
    assert grant.lease.session == 3


def test_an_open_during_freeing_is_parked_and_fills_anew() -> None:
    bench = Bench()
    bench.resident("a", 40)
    bench.feed(EvictRequested, key="a", place=CPU, drain=False)
    assert bench.ask("a") == []
    old = bench.generation("a")
    assert kinds(bench.freed("a")) == [Measure]
    assert bench.generation("a") > old


def test_a_broken_replica_gets_no_new_lease_and_goes_after_the_last_one() -> None:
    bench = Bench()
    bench.resident("a", 40)
    lease = bench.opened("a")
    bench.feed(ReplicaBroken, key="a", place=CPU, generation=bench.generation("a"), reason="bit flip")
    assert bench.state("a") is State.DRAINING
    assert kinds(bench.feed(Closed, lease=lease, session=1)) == [Free]


def test_a_broken_idle_replica_goes_at_once() -> None:
    bench = Bench()
    bench.resident("a", 40)
    out = bench.feed(ReplicaBroken, key="a", place=CPU, generation=bench.generation("a"), reason="bit flip")
    assert kinds(out) == [Free]


def test_eager_reclaim_frees_at_the_last_close() -> None:
    bench = Bench()
    bench.resident("a", 40)
    (first,) = bench.ask("a", session=1, keep_alive_s=0.0)
    (second,) = bench.ask("a", session=2, keep_alive_s=0.0)
    assert isinstance(first, Grant)
    assert isinstance(second, Grant)
    assert bench.feed(Closed, lease=first.lease.number, session=1) == []
    assert kinds(bench.feed(Closed, lease=second.lease.number, session=2)) == [Free]


def test_keep_alive_counts_from_the_last_use() -> None:
    bench = Bench()
    bench.resident("a", 40)
    (grant,) = bench.ask("a", keep_alive_s=10.0)
    assert isinstance(grant, Grant)
    bench.now += 100.0
    assert bench.feed(Tick) == []
    bench.feed(Closed, lease=grant.lease.number, session=1)
    assert bench.residency.next_due_s() == bench.now + 10.0
    bench.now += 8.0
    assert bench.feed(Tick) == []
    bench.now += 2.0
    assert kinds(bench.feed(Tick)) == [Free]


def test_lazy_replicas_are_never_due() -> None:
    bench = Bench()
    bench.resident("a", 40)
    assert bench.residency.next_due_s() is None


def test_a_draining_daemon_refuses_opens_and_keeps_leases() -> None:
    bench = Bench()
    bench.resident("a", 40)
    lease = bench.opened("a")
    bench.feed(DrainRequested)
    assert isinstance(error_of(bench.ask("a", session=2)), DrainingError)
    assert lease in bench.residency.leases.by_number


def test_a_place_without_a_tier_is_named() -> None:
    bench = Bench()
    error = error_of(bench.ask("a", place=Place.parse("gpu:1")))
    assert isinstance(error, NotSupportedError)
    assert "gpu:1" in str(error)
    assert "cpu, disk" in str(error)


def test_frequency_outlives_eviction() -> None:
    bench = Bench()
    bench.resident("a", 40)
    for _ in range(3):
        bench.feed(Closed, lease=bench.opened("a"), session=1)
    bench.feed(EvictRequested, key="a", place=CPU, drain=False)
    bench.freed("a")
    bench.ask("a")
    replica = bench.residency.find("a", CPU)
    assert replica is not None
    assert replica.uses == 3


def test_adoption_beyond_capacity_is_our_bug() -> None:
    bench = Bench(cpu_bytes=10)
    with pytest.raises(InternalError):
        bench.feed(Adopted, key="a", place=CPU, nbytes=11)


def test_an_illegal_step_tells_the_replicas_story() -> None:
    replica = Replica("a" * 64, CPU, 1)
    replica.step(State.QUEUED, 1.0, "first waiter")
    with pytest.raises(InvalidTransitionError, match="absent -> queued: first waiter"):
        replica.step(State.DRAINING, 2.0, "nonsense")


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
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
        (lambda r: r.table.by_key["a"].update({DISK: r.replicas["a", CPU]}), "the index by key has it at"),
        (lambda r: r.table.by_key.update({"b": {}}), "the index by key has it at"),
        (lambda r: r.table.by_key["a"].update({CPU: Replica("a", CPU, 99)}), r"index by key has it at cpu \(99\)"),
        (lambda r: r.table.replicas.clear(), "the index by key has it at"),
        (lambda r: r.table.by_place[CPU].clear(), "the index by place"),
        (lambda r: r.capacity.at[CPU].shares.update({Share.IDLE: 7}), "the shares are"),
        (lambda r: setattr(r.capacity.at[CPU], "claimed_bytes", 7), "bytes claimed"),
        (lambda r: setattr(r.replicas["a", CPU], "keep_until_s", 7.0), "no alarm is set"),
    ],
)
def test_validate_notices_damaged_books(damage: object, rule: str) -> None:
    bench = Bench()
    bench.resident("a", 40)
    bench.opened("a")
    damage(bench.residency)  # type: ignore[operator]
    with pytest.raises(InvariantError, match=rule):
        bench.residency.validate()


def test_a_waiter_without_a_deadline_is_answered_at_once_behind_a_patient_one() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 60)
    bench.opened("held")
    bench.ask("patient", session=2, deadline_in_s=1000.0)
    assert bench.measured("patient", 90) == []
    bench.ask("too big now", session=3)
    assert isinstance(error_of(bench.measured("too big now", 70)), CapacityError)
    bench.ask("small", session=4)
    assert kinds(bench.measured("small", 30)) == [Fill]


def test_a_waiter_without_a_deadline_that_joins_a_patient_one_is_answered_at_once() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 60)
    bench.opened("held")
    bench.ask("patient", session=2, deadline_in_s=1000.0)
    assert bench.measured("patient", 90) == []
    assert isinstance(error_of(bench.ask("patient", session=3)), CapacityError)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_pin_at_a_place_without_a_tier_is_refused_by_name(pinned: bool) -> None:
    bench = Bench()
    with pytest.raises(NotSupportedError, match="no tier gpu:7"):
        bench.feed(PinChanged, key="a", place=Place.parse("gpu:7"), pinned=pinned)


def test_a_request_that_says_nothing_of_keep_alive_leaves_it_as_it_was() -> None:
    """A client that takes up a lease after a restart must not end the keep-alive that the manifest states."""
    bench = Bench()
    bench.ask("a", keep_alive_s=10.0)
    bench.measured("a", 40)
    bench.filled("a")
    bench.ticket += 1
    bench.feed(Requested, key="a", place=CPU, waiter=Waiter(bench.ticket, 2, True, None))
    replica = bench.residency.find("a", CPU)
    assert replica is not None
    assert replica.keep_alive_s == 10.0


def test_a_draining_daemon_refuses_prefetches_and_goes_on_with_its_own_work() -> None:
    bench = Bench()
    bench.feed(DrainRequested)
    assert isinstance(error_of(bench.ask("a", session=None, lease=False)), DrainingError)
    waiter = Waiter(99, None, wants_lease=False, deadline_at_s=None, internal=True)
    assert kinds(bench.feed(Requested, key="a", place=DISK, waiter=waiter)) == [Measure]


def test_what_a_restart_found_is_granted_once_its_bytes_are_verified() -> None:
    bench = Bench()
    bench.feed(Adopted, key="a", place=CPU, nbytes=40, verified=False)
    assert bench.ask("a") == []
    assert kinds(bench.filled("a")) == [Grant]


def test_what_a_restart_found_and_is_wrong_is_refused_and_gives_its_room_back() -> None:
    bench = Bench()
    bench.feed(Adopted, key="a", place=CPU, nbytes=40, verified=False)
    bench.ask("a")
    out = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=ArtifactError("flipped"))
    assert kinds(out) == [Refuse]
    assert bench.residency.capacity.at[CPU].free_bytes == 100


def test_lease_numbers_begin_where_the_daemon_says() -> None:
    residency = Residency({CPU: 100}, {CPU: LeastRecentlyUsed()}, first_lease=7000)
    residency.handle(Adopted(at_s=0.0, key="a", place=CPU, nbytes=10))
    out = residency.handle(Requested(at_s=1.0, key="a", place=CPU, waiter=Waiter(1, 1, True, None)))
    assert [it.lease.number for it in out if isinstance(it, Grant)] == [7000]


# -- the number of images ------------------------------------------------------------------------------------------


def with_images(most: int) -> Bench:
    bench = Bench()
    places = {CPU: 1000, DISK: 1000}
    bench.residency = Residency(places, {place: LeastRecentlyUsed() for place in places}, max_images=most)
    return bench


def test_beyond_the_limit_of_images_the_one_idle_longest_goes_from_wherever_it_is() -> None:
    bench = with_images(3)
    bench.resident("old", 10, DISK)
    bench.resident("older than new", 10)
    bench.resident("new", 10)
    bench.ask("more")
    out = bench.measured("more", 10)
    assert [(it.key, it.place) for it in out if isinstance(it, Free)] == [("old", DISK)]
    assert kinds(bench.filled("more")) == [Grant]


def test_what_is_read_or_pinned_stays_beyond_the_limit_of_images() -> None:
    bench = with_images(2)
    bench.resident("read", 10)
    lease = bench.opened("read")
    bench.feed(PinChanged, key="pinned", place=CPU, pinned=True)
    bench.resident("pinned", 10)
    bench.ask("more", session=2)
    assert kinds(bench.measured("more", 10)) == [Fill]
    assert kinds(bench.filled("more")) == [Grant]
    out = bench.feed(Closed, lease=lease, session=1)
    assert [it.key for it in out if isinstance(it, Free)] == ["read"], "the surplus goes once it is idle"
