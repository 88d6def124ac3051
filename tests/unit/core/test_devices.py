"""Devices in the books: several of them, the work of those who read there, and what happens when one is lost."""

from __future__ import annotations

import pytest
from books import Bench, error_of, kinds

from trims.core.errors import CapacityError, DeviceLostError, InUseError, TooLargeError
from trims.core.events import (
    Closed,
    Event,
    EvictRequested,
    Fill,
    FillFailed,
    Free,
    Grant,
    Instruction,
    Lost,
    PinChanged,
    PlaceLost,
    Refuse,
    Requested,
    SessionEnded,
    WaiterLeft,
    WorkspaceKnown,
)
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, GPU, Place, TierKind
from trims.core.policy import LeastRecentlyUsed
from trims.core.replica import State
from trims.core.residency import Residency

OTHER = Place(TierKind.GPU, 1)


class Devices(Bench):
    """Two devices with a reserve of 10 bytes each."""

    def __init__(self, *, peers: bool = False, cpu_bytes: int = 1000) -> None:
        super().__init__()
        places = {CPU: cpu_bytes, DISK: 1000, GPU: 100, OTHER: 100}
        pairs = [(GPU, OTHER), (OTHER, GPU)] if peers else []
        policies = {place: LeastRecentlyUsed() for place in places}
        self.residency = Residency(places, policies, reserves={GPU: 10, OTHER: 10}, peers=pairs)

    def want(self, key: str, workspace_bytes: int, *, session: int = 1, place: Place = GPU) -> list[Instruction]:
        """Open a model whose readers need that much beside it."""
        self.ticket += 1
        waiter = Waiter(self.ticket, session, wants_lease=True, deadline_at_s=None)
        return self.feed(Requested, key=key, place=place, waiter=waiter, workspace_bytes=workspace_bytes)


def only(kind: type[Event | Instruction], out: list[Instruction]) -> list[Instruction]:
    return [each for each in out if isinstance(each, kind)]


# -- several devices ---------------------------------------------------------------------------------------------------


def test_a_device_copies_from_its_peer() -> None:
    bench = Devices(peers=True)
    bench.resident("a", 40, OTHER, CPU)
    (fill,) = bench.ask("a", place=GPU)
    assert isinstance(fill, Fill)
    assert fill.source == OTHER


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


def test_an_image_for_the_disk_is_taken_from_memory_rather_than_from_a_device() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU, CPU)
    (fill,) = bench.ask("a", place=DISK)
    assert isinstance(fill, Fill)
    assert fill.source == CPU


# -- the work of those who read ----------------------------------------------------------------------------------------


def test_room_is_left_for_the_work_of_everybody_who_reads() -> None:
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


def test_a_session_needs_its_workspace_once_however_often_it_opens() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU)
    grants = [bench.want("a", 20, session=session)[0] for session in (1, 1, 2)]
    assert bench.residency.capacity.at[GPU].workspace_bytes == 40
    for grant, left in zip(grants, (40, 20, 0), strict=True):
        assert isinstance(grant, Grant)
        bench.feed(Closed, lease=grant.lease.number, session=grant.lease.session)
        assert bench.residency.capacity.at[GPU].workspace_bytes == left


@pytest.mark.parametrize("lies_at", [GPU, DISK], ids=["the session reads", "the session waits for a fill"])
def test_who_ends_gives_the_room_for_his_work_to_who_waits(lies_at: Place) -> None:
    bench = Devices()
    bench.resident("a", 40, lies_at)
    bench.resident("b", 60, DISK)
    bench.want("a", 30)
    assert bench.ask("b", session=2, place=GPU, deadline_in_s=60) == []
    (fill,) = bench.feed(SessionEnded, session=1)
    assert isinstance(fill, Fill)
    assert fill.key == "b"


def test_an_idle_image_makes_way_for_the_work_of_one_who_reads_another() -> None:
    bench = Devices()
    bench.resident("idle", 40, GPU, CPU)
    bench.resident("a", 50, GPU)
    grant, free = bench.want("a", 30)
    assert isinstance(grant, Grant)
    assert isinstance(free, Free)
    assert (free.key, free.evicted) == ("idle", True)


def test_an_idle_image_makes_way_for_the_next_one_who_reads() -> None:
    bench = Devices()
    bench.resident("idle", 30, GPU, CPU)
    bench.resident("a", 50, GPU)
    assert kinds(bench.want("a", 20)) == [Grant]
    assert kinds(bench.want("a", 20, session=2)) == [Grant, Free]


def test_an_idle_image_makes_way_for_everybody_who_waited_for_room() -> None:
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


def test_what_is_found_out_while_somebody_reads_counts_from_then_on() -> None:
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


def test_an_image_that_leaves_no_room_for_one_reader_is_too_large() -> None:
    bench = Devices()
    bench.resident("a", 80, DISK)
    error = error_of(bench.want("a", 31))
    assert isinstance(error, TooLargeError)
    assert "21 B more than the reserve for the session that reads it" in str(error)
    assert kinds(bench.want("a", 30)) == [Fill]


def test_work_is_a_matter_of_devices_only() -> None:
    bench = Devices()
    bench.resident("a", 40)
    assert kinds(bench.want("a", 10_000, place=CPU)) == [Grant]


def test_the_work_of_who_waits_is_counted_while_his_image_is_filled() -> None:
    bench = Devices()
    for key in ("a", "b"):
        bench.resident(key, 40, DISK)
    assert kinds(bench.want("a", 30)) == [Fill]
    assert isinstance(error_of(bench.want("b", 10, session=2)), CapacityError), "it would take what a's reader needs"
    assert kinds(bench.filled("a", GPU)) == [Grant]
    assert bench.residency.capacity.at[GPU].workspace_bytes == 30


def test_everybody_who_waits_for_a_fill_is_counted_while_he_does() -> None:
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


def test_a_fill_that_fails_gives_back_what_was_foreseen() -> None:
    bench = Devices()
    bench.resident("a", 40, DISK)
    bench.want("a", 30)
    error = DeviceLostError("gone")
    bench.feed(FillFailed, key="a", place=GPU, generation=bench.generation("a", GPU), error=error)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 0
    assert bench.residency.capacity.at[GPU].free_bytes == 100


def test_who_was_parked_while_a_replica_went_brings_what_his_work_needs() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU, CPU)
    bench.feed(EvictRequested, key="a", place=GPU, drain=False)
    assert bench.want("a", 30) == []
    assert kinds(bench.freed("a", GPU)) == [Fill]
    bench.filled("a", GPU)
    assert bench.residency.capacity.at[GPU].workspace_bytes == 30


def test_whoever_is_idle_makes_way_for_work_though_it_is_not_enough() -> None:
    bench = Devices()
    bench.resident("idle", 30, GPU, CPU)
    bench.resident("a", 60, GPU)
    grant, free = bench.want("a", 100)
    assert isinstance(grant, Grant)
    assert isinstance(free, Free)
    assert free.key == "idle"


def test_less_work_lets_the_next_one_in() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU)
    bench.resident("b", 60, DISK)
    bench.want("a", 30)
    assert bench.ask("b", session=2, place=GPU, deadline_in_s=60) == []
    out = bench.want("a", 10)
    assert {type(each) for each in out} == {Grant, Fill}


# -- units -------------------------------------------------------------------------------------------------------------


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


# -- a device that is lost ---------------------------------------------------------------------------------------------


def test_who_reads_on_a_lost_device_is_told_and_holds_nothing_up() -> None:
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
def test_other_places_do_not_notice(elsewhere: Place) -> None:
    bench = Devices()
    bench.resident("a", 40, elsewhere)
    bench.ask("a", place=elsewhere)
    assert bench.feed(PlaceLost, place=GPU, reason="gone") == []
    assert bench.state("a", elsewhere) is State.SEALED
