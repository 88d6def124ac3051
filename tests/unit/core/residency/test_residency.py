"""Residency, event by event: what goes in, which instructions come out."""

# fault (orders): a copy overtakes a conversion; completions come late, twice, out of order

from __future__ import annotations

import pytest
from books import OTHER, Bench, Devices, error_of, kinds, only

from trims.core.errors import (
    ArtifactError,
    DeadlineError,
    DeviceLostError,
    DrainingError,
    InternalError,
    InUseError,
    NotSupportedError,
)
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, GPU, Place
from trims.core.replica import State
from trims.core.residency.events import (
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
    Lost,
    Measure,
    Measured,
    MeasureFailed,
    PinChanged,
    PlaceLost,
    RaisePriority,
    Ready,
    Refuse,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
)


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


def test_a_deadline_that_passes_during_a_load_says_so_and_the_load_is_finished() -> None:
    bench = Bench()
    bench.ask("a", deadline_in_s=1.0)
    bench.measured("a", 40)
    bench.now += 10.0
    assert isinstance(error_of(bench.feed(Tick)), DeadlineError)
    assert bench.filled("a") == []
    assert bench.state("a") is State.SEALED


def test_unpinning_lets_waiting_opens_in() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("pinned", 60)
    bench.feed(PinChanged, key="pinned", place=CPU, pinned=True)
    bench.ask("c", deadline_in_s=100.0)
    bench.measured("c", 50)
    assert kinds(bench.feed(PinChanged, key="pinned", place=CPU, pinned=False)) == [Free]


def test_a_failed_fill_answers_every_waiter_with_its_error() -> None:
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


def test_an_open_during_freeing_is_parked_and_fills_again() -> None:
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
    assert kinds(bench.ask("a")) == [RaisePriority]
    assert kinds(bench.filled("a")) == [Grant]


def test_what_a_restart_found_and_is_wrong_is_refused_and_gives_its_room_back() -> None:
    bench = Bench()
    bench.feed(Adopted, key="a", place=CPU, nbytes=40, verified=False)
    bench.ask("a")
    out = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=ArtifactError("flipped"))
    assert kinds(out) == [Refuse]
    assert bench.residency.capacity.at[CPU].free_bytes == 100


# -- the number of images ------------------------------------------------------------------------------------------


# -- a device that is lost -----------------------------------------------------------------------------------------


def test_a_waiter_parked_while_a_replica_goes_brings_what_its_work_needs() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU, CPU)
    bench.feed(EvictRequested, key="a", place=GPU, drain=False)
    assert bench.want("a", 30) == []
    assert kinds(bench.freed("a", GPU)) == [Fill]
    bench.filled("a", GPU)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 30


def test_a_reader_on_a_lost_device_is_told_and_holds_nothing_up() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU, CPU)
    (grant,) = bench.ask("a", place=GPU)
    assert isinstance(grant, Grant)
    lost, free = bench.feed(PlaceLost, place=GPU, reason="its keeper has ended")
    assert isinstance(lost, Lost)
    assert (lost.lease, lost.reason) == (grant.lease, "its keeper has ended")
    assert isinstance(free, Free)
    assert bench.state("a", CPU) is State.SEALED
    assert bench.ask("a", session=2, place=GPU) == [], "parked until the memory is given back"
    (fill,) = bench.freed("a", GPU)
    assert isinstance(fill, Fill)
    assert (fill.place, fill.source) == (GPU, CPU)
    assert bench.feed(Closed, lease=grant.lease.number, session=1) == [], "closing it late changes nothing"


def test_what_was_draining_on_a_lost_device_goes_too() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU)
    bench.ask("a", place=GPU)
    bench.feed(EvictRequested, key="a", place=GPU, drain=True)
    assert bench.state("a", GPU) is State.DRAINING
    assert kinds(bench.feed(PlaceLost, place=GPU, reason="gone")) == [Lost, Free]


def test_a_copy_from_a_lost_device_ends_by_its_own_report() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU)
    bench.ask("a")
    assert bench.feed(PlaceLost, place=GPU, reason="gone") == []
    assert bench.state("a", GPU) is State.DRAINING
    error = DeviceLostError("gone")
    out = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=error)
    assert error_of(out) is error
    assert len(only(Free, out)) == 1


def test_a_fill_on_a_device_lost_meanwhile_is_not_granted_and_runs_again() -> None:
    bench = Devices()
    bench.resident("a", 40)
    (first,) = bench.ask("a", place=GPU)
    assert isinstance(first, Fill)
    assert bench.feed(PlaceLost, place=GPU, reason="gone") == []
    assert kinds(bench.filled("a", GPU)) == [Free], "sealed by a keeper that is dead"
    (again,) = bench.freed("a", GPU)
    assert isinstance(again, Fill)
    assert again.generation > first.generation
    assert kinds(bench.filled("a", GPU)) == [Grant]


def test_a_pin_survives_the_device() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU)
    bench.feed(PinChanged, key="a", place=GPU, pinned=True)
    assert kinds(bench.feed(PlaceLost, place=GPU, reason="gone")) == [Free]
    bench.freed("a", GPU)
    bench.resident("a", 40, DISK)
    bench.ask("a", place=GPU)
    bench.filled("a", GPU)
    bench.feed(SessionEnded, session=1)
    with pytest.raises(InUseError, match="pinned"):
        bench.feed(EvictRequested, key="a", place=GPU, drain=False)


@pytest.mark.parametrize("elsewhere", [CPU, DISK, OTHER])
def test_replicas_at_other_places_do_not_notice_a_lost_device(elsewhere: Place) -> None:
    bench = Devices()
    bench.resident("a", 40, elsewhere)
    bench.ask("a", place=elsewhere)
    assert bench.feed(PlaceLost, place=GPU, reason="gone") == []
    assert bench.state("a", elsewhere) is State.SEALED
