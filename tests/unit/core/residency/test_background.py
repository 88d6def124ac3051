"""Fills that no request waits for: what makes a request wait for one, and that each is hurried once."""

from __future__ import annotations

from books import Bench, kinds, only

from trims.core.errors import CapacityError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, GPU, Place
from trims.core.replica import Replica
from trims.core.residency.background import BackgroundFills
from trims.core.residency.events import (
    Adopted,
    EvictRequested,
    Fill,
    FillFailed,
    Free,
    Grant,
    Instruction,
    Measure,
    RaisePriority,
    Ready,
    Requested,
    WaiterLeft,
)


def own_wish(bench: Bench, key: str, place: Place) -> list[Instruction]:
    """The store wants an image at a place, for its own purposes."""
    bench.ticket += 1
    waiter = Waiter(bench.ticket, None, wants_lease=False, deadline_at_s=None, internal=True)
    return bench.feed(Requested, key=key, place=place, waiter=waiter)


def hurried(out: list[Instruction]) -> list[tuple[str, str]]:
    return [(each.key, str(each.place)) for each in only(RaisePriority, out) if isinstance(each, RaisePriority)]


def copied_behind(bench: Bench, key: str, nbytes: int, source: Place, target: Place) -> None:
    bench.resident(key, nbytes, source)
    (fill,) = own_wish(bench, key, target)
    assert isinstance(fill, Fill)
    assert fill.behind


def test_a_fill_is_found_at_the_places_whose_room_it_keeps_until_it_ends() -> None:
    fills, one, other = BackgroundFills(), Replica("a", DISK, 1), Replica("b", CPU, 2)
    fills.begin(one, {DISK, CPU})
    fills.begin(other, {CPU})
    assert (fills.at(CPU), fills.at(DISK), fills.at(GPU)) == ([one, other], [one], [])
    assert (fills.all(), one in fills) == ([one, other], True)
    assert fills.end(one)
    assert not fills.end(one)
    assert (fills.at(CPU), fills.at(DISK), one in fills) == ([other], [], False)


def test_a_request_for_the_image_hurries_its_fill_once() -> None:
    bench = Bench()
    copied_behind(bench, "a", 40, DISK, CPU)
    assert hurried(own_wish(bench, "a", CPU)) == []
    assert hurried(bench.ask("a")) == [("a", "cpu")]
    assert bench.ask("a", session=2) == []
    assert kinds(bench.filled("a"))[-2:] == [Grant, Grant]
    assert bench.residency._ledger.unawaited.all() == []


def test_a_request_at_a_device_hurries_the_copy_on_the_host_that_it_is_made_of() -> None:
    bench = Bench()
    own_wish(bench, "a", CPU)
    (fill,) = bench.measured("a", 40)
    assert isinstance(fill, Fill)
    assert fill.behind
    assert hurried(bench.ask("a", place=GPU)) == [("a", "cpu")]


def test_a_request_that_waits_for_room_which_a_fill_holds_hurries_it() -> None:
    bench = Bench(cpu_bytes=100)
    copied_behind(bench, "a", 60, DISK, CPU)
    bench.ask("b", deadline_in_s=60.0)
    assert hurried(bench.measured("b", 80)) == [("a", "cpu")]
    assert kinds(bench.filled("a")) == [Ready, Free]


def test_a_request_that_waits_for_room_which_a_fill_borrows_hurries_it() -> None:
    bench = Bench(cpu_bytes=100)
    copied_behind(bench, "a", 60, CPU, DISK)
    bench.ask("b", deadline_in_s=60.0)
    assert hurried(bench.measured("b", 80)) == [("a", "disk")]


def test_a_claim_on_room_that_a_fill_borrows_hurries_it() -> None:
    bench = Bench(cpu_bytes=100)
    copied_behind(bench, "a", 60, CPU, DISK)
    bench.feed(EvictRequested, key="a", place=CPU, drain=True)
    own_wish(bench, "b", CPU)
    assert hurried(bench.measured("b", 80)) == []
    assert bench.residency._admission.room.claims[CPU]
    assert hurried(bench.ask("b")) == [("a", "disk"), ("b", "cpu")]


def test_a_measurement_is_hurried_once_by_a_request_for_the_image() -> None:
    bench = Bench()
    (measure,) = own_wish(bench, "a", CPU)
    assert isinstance(measure, Measure)
    assert measure.behind
    assert hurried(bench.ask("a")) == [("a", "cpu")]
    assert hurried(bench.ask("a", session=2)) == []
    (fill,) = bench.measured("a", 40)
    assert isinstance(fill, Fill)
    assert not fill.behind


def test_a_request_has_its_image_measured_at_once() -> None:
    bench = Bench()
    (measure,) = bench.ask("a")
    assert isinstance(measure, Measure)
    assert not measure.behind
    assert bench.residency._ledger.unawaited.all() == []


def test_a_measurement_that_is_not_wanted_any_more_is_among_them_no_more() -> None:
    bench = Bench()
    own_wish(bench, "a", CPU)
    bench.feed(WaiterLeft, ticket=bench.ticket)
    assert bench.residency._ledger.unawaited.all() == []


def test_a_fill_that_begins_while_a_request_waits_for_its_room_is_hurried_at_once() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("read", 60)
    bench.opened("read")
    bench.ask("b", session=2, deadline_in_s=60.0)
    bench.measured("b", 80)
    bench.resident("kept", 10)
    out = own_wish(bench, "kept", DISK)
    assert [type(each) for each in out] == [Fill, RaisePriority]


def test_what_only_the_store_wants_hurries_no_fill_that_keeps_its_room() -> None:
    bench = Bench(cpu_bytes=100)
    copied_behind(bench, "a", 60, DISK, CPU)
    own_wish(bench, "b", CPU)
    assert hurried(bench.measured("b", 80)) == []


def test_what_is_being_verified_after_a_restart_is_hurried_by_a_request_for_it_only() -> None:
    bench = Bench(cpu_bytes=100)
    bench.feed(Adopted, key="a", place=CPU, nbytes=60, verified=False)
    bench.ask("b", deadline_in_s=60.0)
    assert hurried(bench.measured("b", 80)) == []
    assert hurried(bench.ask("a")) == [("a", "cpu")]


def test_a_fill_that_failed_is_among_them_no_more() -> None:
    bench = Bench()
    copied_behind(bench, "a", 40, DISK, CPU)
    failed = {"key": "a", "place": CPU, "generation": bench.generation("a")}
    bench.feed(FillFailed, **failed, error=CapacityError("/dev/shm is full"))
    assert bench.residency._ledger.unawaited.all() == []
