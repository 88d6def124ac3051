"""Admission: which waiter is served, which replica gets room, and what is evicted for it."""

from __future__ import annotations

import pytest
from books import Bench, Devices, error_of, kinds

from trims.core.errors import CapacityError, DeviceLostError, InUseError, NotSupportedError, TooLargeError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, GPU, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import State
from trims.core.residency.events import (
    Abandon,
    Closed,
    EvictRequested,
    Fill,
    FillFailed,
    Free,
    Grant,
    PinChanged,
    Refuse,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
)
from trims.core.residency.residency import Residency


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


def test_an_image_still_being_measured_holds_no_other_up() -> None:
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


def test_a_waiter_that_leaves_the_queue_makes_way() -> None:
    bench = Bench()
    bench.ask("a")
    assert kinds(bench.feed(WaiterLeft, ticket=1)) == [Abandon]
    assert bench.feed(WaiterLeft, ticket=1) == []


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


def test_a_place_without_a_tier_is_named() -> None:
    bench = Bench()
    error = error_of(bench.ask("a", place=Place.parse("gpu:1")))
    assert isinstance(error, NotSupportedError)
    assert "gpu:1" in str(error)
    assert "cpu, disk" in str(error)


# -- the work of sessions that read on a device --------------------------------------------------------------------


@pytest.mark.parametrize("lies_at", [GPU, DISK], ids=["the session reads", "the session waits for a fill"])
def test_the_end_of_a_session_gives_its_working_room_to_a_waiter(lies_at: Place) -> None:
    bench = Devices()
    bench.resident("a", 40, lies_at)
    bench.resident("b", 60, DISK)
    bench.want("a", 30)
    assert bench.ask("b", session=2, place=GPU, deadline_in_s=60) == []
    (fill,) = bench.feed(SessionEnded, session=1)
    assert isinstance(fill, Fill)
    assert fill.key == "b"


def test_an_idle_image_makes_way_for_the_work_of_a_reader_of_another() -> None:
    bench = Devices()
    bench.resident("idle", 40, GPU, CPU)
    bench.resident("a", 50, GPU)
    grant, free = bench.want("a", 30)
    assert isinstance(grant, Grant)
    assert isinstance(free, Free)
    assert (free.key, free.evicted) == ("idle", True)


def test_an_idle_image_makes_way_for_the_next_reader() -> None:
    bench = Devices()
    bench.resident("idle", 30, GPU, CPU)
    bench.resident("a", 50, GPU)
    assert kinds(bench.want("a", 20)) == [Grant]
    assert kinds(bench.want("a", 20, session=2)) == [Grant, Free]


def test_an_idle_image_makes_way_for_the_work_of_every_waiter_that_gets_room() -> None:
    bench = Devices()
    bench.resident("idle", 20, GPU, CPU)
    bench.resident("fails", 50, DISK)
    bench.resident("a", 60, DISK)
    bench.ask("fails", place=GPU)
    for session in (2, 3):
        bench.ticket += 1
        waiter = Waiter(bench.ticket, session, wants_lease=True, deadline_at_s=1000.0)
        assert bench.feed(Requested, key="a", place=GPU, waiter=waiter, workspace_bytes=25) == []
    error = DeviceLostError("gone")
    out = bench.feed(FillFailed, key="fails", place=GPU, generation=bench.generation("fails", GPU), error=error)
    assert kinds(out) == [Refuse, Fill, Free], "room was asked for one of the two, and both count"


def test_the_work_of_readers_counts_on_devices_only() -> None:
    bench = Devices()
    bench.resident("a", 40)
    assert kinds(bench.want("a", 10_000, place=CPU)) == [Grant]


def test_an_idle_image_goes_when_waiting_sessions_need_more_than_the_device_has() -> None:
    bench = Devices()
    bench.resident("idle", 20, GPU, CPU)
    bench.resident("a", 40, DISK)
    assert kinds(bench.want("a", 30)) == [Fill]
    assert bench.want("a", 30, session=2) != []
    assert bench.state("idle", GPU) is State.FREEING


def test_an_image_that_becomes_idle_goes_at_once_if_work_exceeds_the_room() -> None:
    bench = Devices()
    for key, nbytes in (("a", 50), ("b", 40)):
        bench.resident(key, nbytes, GPU, CPU)
    (grant,) = bench.ask("b", place=GPU)
    assert isinstance(grant, Grant)
    assert kinds(bench.want("a", 30, session=2)) == [Grant]
    (free,) = bench.feed(Closed, lease=grant.lease.number, session=1)
    assert isinstance(free, Free)
    assert (free.key, free.place) == ("b", GPU)


def test_an_idle_image_makes_way_for_work_though_it_is_not_enough() -> None:
    bench = Devices()
    bench.resident("idle", 30, GPU, CPU)
    bench.resident("a", 60, GPU)
    grant, free = bench.want("a", 100)
    assert isinstance(grant, Grant)
    assert isinstance(free, Free)
    assert free.key == "idle"


def test_less_work_lets_the_next_waiter_in() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU)
    bench.resident("b", 60, DISK)
    bench.want("a", 30)
    assert bench.ask("b", session=2, place=GPU, deadline_in_s=60) == []
    out = bench.want("a", 10)
    assert {type(each) for each in out} == {Grant, Fill}


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
