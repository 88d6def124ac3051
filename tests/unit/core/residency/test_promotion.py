"""Images on their way to a device and back: through the host, and never nowhere."""

from __future__ import annotations

import pytest
from books import OTHER, Bench, Devices, error_of, kinds, only

from trims.core.errors import ArtifactError, CapacityError, DeadlineError, InUseError, TooLargeError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, GPU, Place, TierKind
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.replica import State
from trims.core.residency.events import (
    Abandon,
    Changed,
    Closed,
    EvictRequested,
    Fill,
    Filled,
    FillFailed,
    Free,
    Freed,
    Grant,
    Measure,
    MeasureFailed,
    Refuse,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
)
from trims.core.residency.residency import Residency


def test_a_cold_open_on_a_device_is_converted_on_the_host_and_copied_from_there() -> None:
    bench = Bench()
    (measure,) = bench.ask("a", place=GPU)
    assert isinstance(measure, Measure)
    assert measure.place == CPU
    (fill,) = bench.measured("a", 40)
    assert isinstance(fill, Fill)
    assert (fill.place, fill.source) == (CPU, None)
    (promotion,) = bench.filled("a")
    assert isinstance(promotion, Fill)
    assert (promotion.place, promotion.source, promotion.nbytes) == (GPU, CPU, 40)
    (grant,) = bench.filled("a", GPU)
    assert isinstance(grant, Grant)
    assert (grant.lease.place, grant.warm) == (GPU, False)
    assert bench.state("a") is State.SEALED


def test_what_lies_on_disk_goes_to_the_device_without_a_stop() -> None:
    bench = Bench()
    bench.resident("a", 40, DISK)
    (fill,) = bench.ask("a", place=GPU)
    assert isinstance(fill, Fill)
    assert (fill.place, fill.source) == (GPU, DISK)


def test_a_load_that_runs_on_the_host_is_joined() -> None:
    bench = Bench()
    bench.ask("a")
    assert bench.ask("a", session=2, place=GPU) == []
    bench.measured("a", 40)
    grant, promotion = bench.filled("a")
    assert kinds([grant, promotion]) == [Grant, Fill]


def test_many_opens_on_a_device_make_one_load_on_the_host() -> None:
    bench = Bench()
    bench.ask("a", place=GPU)
    for session in range(2, 10):
        assert bench.ask("a", session=session, place=GPU) == []
    bench.measured("a", 40)
    bench.filled("a")
    assert kinds(bench.filled("a", GPU)) == [Grant] * 9


def test_a_load_that_fails_on_the_host_is_told_to_the_waiter_at_the_device() -> None:
    bench = Bench()
    bench.ask("a", place=GPU)
    error = ArtifactError("broken file")
    bench.measured("a", 40)
    out = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=error)
    assert error_of(out) is error
    assert bench.state("a", GPU) is State.ABSENT


def test_a_measurement_that_fails_on_the_host_is_told_to_the_device() -> None:
    bench = Bench()
    bench.ask("a", place=GPU)
    error = ArtifactError("broken file")
    out = bench.feed(MeasureFailed, error=error, **bench.measurement("a"))
    assert error_of(out) is error
    assert bench.state("a", GPU) is State.ABSENT


def test_an_image_too_large_for_shared_memory_goes_by_way_of_the_disk() -> None:
    bench = Bench(cpu_bytes=50, gpu_bytes=200)
    bench.ask("a", place=GPU)
    abandon, measure = bench.measured("a", 150)
    assert isinstance(abandon, Abandon)
    assert isinstance(measure, Measure)
    assert measure.place == DISK
    bench.measured("a", 150, DISK)
    (promotion,) = bench.filled("a", DISK)
    assert isinstance(promotion, Fill)
    assert (promotion.place, promotion.source) == (GPU, DISK)


def test_an_image_too_large_for_every_host_place_is_refused() -> None:
    bench = Bench(cpu_bytes=50, disk_bytes=60, gpu_bytes=200)
    bench.ask("a", place=GPU)
    bench.measured("a", 150)
    assert isinstance(error_of(bench.measured("a", 150, DISK)), TooLargeError)
    assert bench.state("a", GPU) is State.ABSENT


def test_a_full_host_refuses_waiters_without_a_deadline_and_keeps_the_others() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("b", 80)
    lease = bench.opened("b")
    bench.ask("a", session=2, place=GPU)
    assert isinstance(error_of(bench.measured("a", 40)), CapacityError)
    bench.ask("a", session=2, place=GPU, deadline_in_s=50)
    assert bench.measured("a", 40) == []
    bench.feed(Closed, lease=lease, session=1)
    (fill,) = bench.feed(Freed, key="b", place=CPU, generation=bench.generation("b"))
    assert isinstance(fill, Fill)
    assert fill.place == CPU


def test_a_deadline_that_passes_while_the_host_loads_is_told_once() -> None:
    bench = Bench()
    bench.ask("a", place=GPU, deadline_in_s=5)
    bench.now += 10
    assert isinstance(error_of(bench.feed(Tick)), DeadlineError)
    assert bench.state("a", GPU) is State.ABSENT


def test_a_later_and_more_patient_waiter_waits_until_its_own_deadline() -> None:
    bench = Bench()
    bench.ask("a", place=GPU, deadline_in_s=5)
    bench.ask("a", session=2, place=GPU, deadline_in_s=1000)
    bench.now += 10
    assert isinstance(error_of(bench.feed(Tick)), DeadlineError)
    assert bench.state("a", GPU) is State.QUEUED
    bench.measured("a", 40)
    bench.filled("a")
    assert kinds(bench.filled("a", GPU)) == [Grant]


def test_a_demotion_does_not_take_the_room_of_a_waiter() -> None:
    bench = Bench(cpu_bytes=100, gpu_bytes=100)
    bench.resident("idle", 80)
    bench.resident("old", 20, GPU)
    bench.resident("large", 90, DISK)
    assert kinds(bench.ask("large", session=2)) == [Free]
    bench.resident("new", 90, DISK)
    (free,) = bench.ask("new", place=GPU)
    assert isinstance(free, Free)
    assert (free.key, free.place) == ("old", GPU)
    (fill,) = bench.freed("idle")
    assert isinstance(fill, Fill)
    assert (fill.key, fill.place) == ("large", CPU)


def test_a_session_that_ends_drops_its_wait_at_the_device_not_a_running_load() -> None:
    bench = Bench()
    bench.ask("a", place=GPU)
    bench.measured("a", 40)
    assert kinds(bench.feed(SessionEnded, session=1)) == [Abandon]
    assert bench.state("a", GPU) is State.ABSENT
    assert bench.filled("a") == []
    assert bench.state("a") is State.SEALED


def one_that_waits_for_a_full_host(deadline_in_s: float) -> Bench:
    """Session 2, on behalf of a device; what fills the host is held by session 1."""
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 80)
    bench.opened("held")
    bench.ask("a", session=2, place=GPU, deadline_in_s=deadline_in_s)
    assert bench.measured("a", 40) == []
    return bench


def test_a_session_that_ends_before_the_host_has_room_leaves_nothing_there() -> None:
    bench = one_that_waits_for_a_full_host(deadline_in_s=1000)
    bench.feed(SessionEnded, session=2)
    assert bench.state("a", GPU) is bench.state("a", CPU) is State.ABSENT
    bench.ask("b", session=3)
    assert kinds(bench.measured("b", 20)) == [Fill], "no other is before it any more"


def test_a_waiter_for_a_device_stays_although_another_will_not_wait() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 80)
    lease = bench.opened("held")
    bench.ask("a", session=2, place=GPU, deadline_in_s=1000)
    patient = bench.ticket
    bench.ask("a", session=3, place=GPU)
    impatient = bench.ticket
    (refusal,) = bench.measured("a", 40)
    assert isinstance(refusal, Refuse)
    assert refusal.ticket == impatient
    assert isinstance(refusal.error, CapacityError)
    (late_refusal,) = bench.ask("a", session=4, place=GPU)
    assert isinstance(late_refusal, Refuse), "so is one that comes once it is known that the host is full"
    assert late_refusal.ticket == bench.ticket
    bench.feed(Closed, lease=lease, session=1)
    bench.freed("held")
    bench.filled("a")
    (grant,) = bench.filled("a", GPU)
    assert isinstance(grant, Grant)
    assert grant.ticket == patient


def test_a_waiter_for_a_device_waits_for_the_last_reader_on_the_host_too() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("a", 40)
    lease = bench.opened("a")
    bench.feed(EvictRequested, key="a", place=CPU, drain=True)
    assert bench.ask("a", session=2, place=GPU, deadline_in_s=1000) == []
    assert isinstance(error_of(bench.ask("a", session=3, place=GPU)), InUseError)
    assert bench.state("a", GPU) is State.QUEUED
    bench.feed(Closed, lease=lease, session=1)
    bench.freed("a")
    bench.measured("a", 40)
    bench.filled("a")
    assert kinds(bench.filled("a", GPU)) == [Grant]


def test_a_deadline_that_passes_while_the_host_is_full_tells_of_the_host() -> None:
    bench = one_that_waits_for_a_full_host(deadline_in_s=5)
    bench.now += 10
    with pytest.raises(CapacityError, match="no room at cpu: 40 B needed; 20 B free of 100 B"):
        raise error_of(bench.feed(Tick))


def test_an_image_that_comes_to_lie_elsewhere_is_not_waited_for_on_the_host_any_more() -> None:
    bench = one_that_waits_for_a_full_host(deadline_in_s=1000)
    bench.ask("a", place=DISK, lease=False)
    bench.measured("a", 40, DISK)
    (promotion,) = [each for each in bench.filled("a", DISK) if isinstance(each, Fill)]
    assert (promotion.place, promotion.source) == (GPU, DISK)
    assert bench.state("a", CPU) is State.ABSENT


def two_that_wait_for_a_full_device() -> Bench:
    """And a host that has room for one of the two."""
    bench = Bench(cpu_bytes=100, gpu_bytes=100)
    bench.resident("held", 90, GPU)
    (held,) = bench.ask("held", place=GPU)
    assert isinstance(held, Grant)
    bench.ask("x", session=2, place=GPU, deadline_in_s=1000)
    bench.ask("y", session=3, place=GPU, deadline_in_s=500)
    bench.measured("x", 70)
    assert bench.measured("y", 70) == []
    assert bench.filled("x") == []
    return bench


def test_two_that_wait_for_a_full_device_do_not_take_turns_on_a_small_host() -> None:
    bench = two_that_wait_for_a_full_device()
    assert (bench.state("x"), bench.state("y")) == (State.SEALED, State.QUEUED)
    (free,) = bench.feed(SessionEnded, session=1)
    assert isinstance(free, Free)
    (fill,) = bench.freed("held", GPU)
    assert isinstance(fill, Fill)
    assert (fill.key, fill.place) == ("x", GPU), "the first of the two"
    assert kinds(bench.filled("x", GPU)) == [Grant, Free]
    (fill,) = bench.freed("x")
    assert isinstance(fill, Fill)
    assert (fill.key, fill.place) == ("y", CPU)


def test_a_host_copy_for_a_device_goes_for_a_request_for_the_host_itself() -> None:
    bench = two_that_wait_for_a_full_device()
    bench.feed(WaiterLeft, ticket=3)
    bench.ask("z", session=4)
    (free,) = bench.measured("z", 60)
    assert isinstance(free, Free)
    assert (free.key, free.place) == ("x", CPU)


def test_a_host_copy_for_a_device_goes_once_no_waiter_is_left_there() -> None:
    bench = two_that_wait_for_a_full_device()
    (abandon, free) = bench.feed(SessionEnded, session=2)
    assert isinstance(abandon, Abandon)
    assert isinstance(free, Free)
    assert (free.key, free.place) == ("x", CPU)
    (fill,) = bench.freed("x")
    assert isinstance(fill, Fill)
    assert (fill.key, fill.place) == ("y", CPU)


def test_a_request_for_an_image_that_is_copied_away_waits_for_the_copy() -> None:
    """An image drains because it has to leave the device, and not under a reader."""
    bench = Bench(gpu_bytes=100)
    bench.resident("old", 80, GPU)
    bench.resident("new", 60, DISK)
    bench.ask("new", place=GPU)
    assert bench.state("old", GPU) is State.DRAINING
    assert bench.ask("old", session=2, place=GPU) == []


@pytest.mark.parametrize(("keep_alive_s", "left"), [(None, State.SEALED), (0.0, State.FREEING), (50.0, State.SEALED)])
def test_a_host_copy_made_for_a_device_is_kept_as_long_as_the_device_s(keep_alive_s: float | None, left: State) -> None:
    bench = Bench()
    bench.ask("a", place=GPU, keep_alive_s=keep_alive_s)
    bench.measured("a", 40)
    bench.filled("a")
    bench.filled("a", GPU)
    assert bench.state("a") is left
    bench.now += 100.0
    bench.feed(Tick)
    assert bench.state("a") is (State.SEALED if keep_alive_s is None else State.FREEING)


def test_a_promise_to_one_device_outlives_the_copy_to_another() -> None:
    other = Place(TierKind.GPU, 1)
    bench = Bench()
    bench.residency = Residency(
        {CPU: 100, GPU: 50, other: 50}, {place: LeastRecentlyUsed() for place in (CPU, GPU, other)}
    )
    bench.resident("held", 40, GPU)
    bench.ask("held", place=GPU)
    bench.ask("a", session=2, place=GPU, deadline_in_s=1000, keep_alive_s=0.0)
    bench.ask("a", session=3, place=other, keep_alive_s=0.0)
    bench.measured("a", 40)
    bench.filled("a")
    assert kinds(bench.filled("a", other)) == [Grant]
    assert bench.state("a") is State.SEALED
    bench.feed(SessionEnded, session=2)
    bench.now += 10
    assert Free in kinds(bench.feed(Tick))


def test_keep_alive_does_not_end_while_a_device_waits_for_room_for_the_image() -> None:
    bench = Bench(gpu_bytes=100)
    bench.resident("held", 90, GPU)
    bench.ask("held", place=GPU)
    bench.ask("a", session=2, place=GPU, deadline_in_s=1000, keep_alive_s=0.0)
    bench.measured("a", 40)
    bench.filled("a")
    bench.now += 10
    assert bench.feed(Tick) == []
    bench.feed(SessionEnded, session=2)
    bench.now += 10
    assert kinds(bench.feed(Tick)) == [Free]


def test_a_failed_load_on_the_host_does_not_fail_a_waiter_with_another_source() -> None:
    bench = Bench(gpu_bytes=100)
    bench.resident("held", 80, GPU)
    (held,) = bench.ask("held", place=GPU)
    assert isinstance(held, Grant)
    bench.ask("a", session=2, place=GPU, deadline_in_s=1000)
    bench.ask("a", session=3)
    bench.measured("a", 40)
    bench.ask("a", place=DISK, lease=False)
    bench.measured("a", 40, DISK)
    bench.filled("a", DISK)
    error = ArtifactError("gone")
    (refusal,) = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=error)
    assert isinstance(refusal, Refuse)
    assert refusal.error is error
    assert bench.state("a", GPU) is State.QUEUED


def test_an_image_that_has_to_leave_a_device_is_copied_to_the_host_first() -> None:
    bench = Bench(gpu_bytes=100)
    bench.resident("old", 80, GPU)
    bench.resident("new", 60, DISK)
    (demotion,) = bench.ask("new", place=GPU, deadline_in_s=50)
    assert isinstance(demotion, Fill)
    assert (demotion.key, demotion.place, demotion.source) == ("old", CPU, GPU)
    assert bench.state("old", GPU) is State.DRAINING
    (free,) = bench.feed(Filled, key="old", place=CPU, generation=bench.generation("old"), cost_s=1.0)
    assert isinstance(free, Free)
    assert (free.key, free.place) == ("old", GPU)
    (fill,) = bench.freed("old", GPU)
    assert isinstance(fill, Fill)
    assert fill.key == "new"
    assert bench.state("old") is State.SEALED


def test_a_waiter_without_a_deadline_waits_for_a_demotion_too() -> None:
    bench = Bench(gpu_bytes=100)
    bench.resident("old", 80, GPU)
    bench.resident("new", 60, DISK)
    assert kinds(bench.ask("new", place=GPU)) == [Fill]


@pytest.mark.parametrize("why", ["it is there", "there is no room"])
def test_an_image_that_need_not_or_cannot_go_to_the_host_is_freed_at_once(why: str) -> None:
    bench = Bench(gpu_bytes=100, cpu_bytes=100)
    bench.resident("old", 80, GPU)
    bench.resident("old" if why == "it is there" else "other", 80)
    bench.resident("new", 60, DISK)
    (free,) = bench.ask("new", place=GPU)
    assert isinstance(free, Free)
    assert (free.key, free.place, free.evicted) == ("old", GPU, True)


def test_a_demotion_that_fails_frees_the_device_all_the_same() -> None:
    bench = Bench(gpu_bytes=100)
    bench.resident("old", 80, GPU)
    bench.resident("new", 60, DISK)
    bench.ask("new", place=GPU)
    error = CapacityError("shared memory is full")
    (free,) = bench.feed(FillFailed, key="old", place=CPU, generation=bench.generation("old"), error=error)
    assert isinstance(free, Free)


def test_a_device_alone_without_a_host_measures_for_itself() -> None:
    """A daemon without cpu and disk tiers has nowhere else to convert: its tier says whether it can."""
    residency = Residency({GPU: 100}, {GPU: LeastRecentlyUsed()})
    out = residency.handle(Requested(at_s=1.0, key="a", place=GPU, waiter=Waiter(1, 1, True, None)))
    assert kinds([each for each in out if not isinstance(each, Changed)]) == [Measure]


def test_devices_that_are_no_peers_copy_through_the_host() -> None:
    bench = Devices()
    bench.resident("a", 40, OTHER)
    (down,) = bench.ask("a", place=GPU)
    assert isinstance(down, Fill)
    assert (down.place, down.source) == (CPU, OTHER)
    (up,) = bench.filled("a")
    assert isinstance(up, Fill)
    assert (up.place, up.source) == (GPU, CPU)
    assert kinds(bench.filled("a", GPU)) == [Grant]


def test_one_of_two_peers_may_be_one_sided() -> None:
    residency = Residency(
        {GPU: 100, OTHER: 100, CPU: 100},
        {place: LeastRecentlyUsed() for place in (GPU, OTHER, CPU)},
        peers=[(GPU, OTHER)],
    )
    bench = Bench()
    bench.residency = residency
    bench.resident("a", 40, GPU)
    bench.resident("b", 40, OTHER)
    (through,) = only(Fill, bench.ask("a", place=OTHER))
    (direct,) = only(Fill, bench.ask("b", place=GPU))
    assert isinstance(through, Fill)
    assert isinstance(direct, Fill)
    assert (through.place, direct.place, direct.source) == (CPU, GPU, OTHER)
