"""Opens that name no place: served from where the image lies, and copied into memory once their use has earned it."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

import pytest
from books import Bench, error_of, kinds, only

from trims.core.errors import ArtifactError, CapacityError, InUseError, TooLargeError, TrimsError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, FILE, GPU, Place
from trims.core.policy.eviction import GreedyDualSizeFrequency, LeastRecentlyUsed, Policy
from trims.core.replica import State
from trims.core.residency.events import (
    Abandon,
    Adopted,
    Closed,
    EvictRequested,
    Failed,
    Fill,
    Filled,
    FillFailed,
    Free,
    Freed,
    Grant,
    KeepAlive,
    ManifestChanged,
    Measure,
    MeasureFailed,
    PinChanged,
    Refuse,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
)
from trims.core.residency.fill_failures import FIRST_PAUSE_S, RETRY_EARNED_S
from trims.core.residency.placement import Verdict
from trims.core.residency.promotion import Promotions
from trims.core.residency.residency import Residency

if TYPE_CHECKING:
    from trims.core.residency.events import Instruction


class Anywhere(Bench):
    """A bench whose opens name no place."""

    def open(
        self,
        key: str,
        *,
        session: int = 1,
        kept: bool = True,
        deadline_in_s: float | None = None,
        keep_alive_s: float | None = None,
    ) -> list[Instruction]:
        self.ticket += 1
        deadline = None if deadline_in_s is None else self.now + 1.0 + deadline_in_s
        waiter = Waiter(self.ticket, session, wants_lease=True, deadline_at_s=deadline)
        keep = KeepAlive(keep_alive_s)
        return self.feed(Requested, key=key, place=CPU, waiter=waiter, anywhere=True, modest=kept, keep=keep)

    def used(self, key: str, times: int) -> None:
        """Open a resident image and close it again, so often."""
        for _ in range(times):
            (grant,) = only(Grant, self.open(key))
            assert isinstance(grant, Grant)
            self.feed(Closed, lease=grant.lease.number, session=1)


def place_of(out: list[Instruction]) -> str:
    (grant,) = only(Grant, out)
    assert isinstance(grant, Grant)
    return str(grant.lease.place)


# -- where an open is served -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sealed", "served"), [((CPU,), "cpu"), ((DISK,), "disk"), ((CPU, DISK), "cpu"), ((GPU, DISK), "disk")]
)
def test_an_open_is_served_from_the_best_place_on_the_host(sealed: tuple[object, ...], served: str) -> None:
    bench = Anywhere()
    bench.resident("a", 40, *sealed)  # type: ignore[arg-type]
    assert place_of(bench.open("a")) == served


def test_an_image_on_disk_is_served_while_memory_is_full_of_readers() -> None:
    bench = Anywhere(cpu_bytes=50)
    bench.resident("hot", 50)
    bench.opened("hot")
    bench.resident("a", 40, DISK)
    assert place_of(bench.open("a", session=2)) == "disk"
    assert place_of(bench.open("a", session=3)) == "disk"


def test_an_open_joins_the_load_that_runs() -> None:
    bench = Anywhere()
    bench.ask("a", place=DISK)
    assert bench.open("a", session=2) == []
    bench.measured("a", 40, DISK)
    assert kinds(bench.filled("a", DISK)) == [Grant, Grant]


def test_an_image_that_lies_nowhere_comes_to_memory() -> None:
    bench = Anywhere()
    (measure,) = bench.open("a")
    assert isinstance(measure, Measure)
    assert measure.place is CPU
    bench.measured("a", 40)
    assert place_of(bench.filled("a")) == "cpu"


def test_a_replica_that_leaves_memory_is_not_waited_for() -> None:
    bench = Anywhere()
    bench.resident("a", 40)
    bench.opened("a")
    bench.feed(EvictRequested, key="a", place=CPU, drain=True)
    (fill,) = bench.open("a", session=2, deadline_in_s=60.0)
    assert isinstance(fill, Measure)
    assert fill.place is DISK


def test_an_image_that_is_not_kept_on_disk_waits_for_its_replica_in_memory_to_leave() -> None:
    bench = Anywhere()
    bench.resident("a", 40)
    bench.opened("a")
    bench.feed(EvictRequested, key="a", place=CPU, drain=True)
    assert isinstance(error_of(bench.open("a", session=2, kept=False)), InUseError)
    assert bench.open("a", session=3, kept=False, deadline_in_s=60.0) == []


def test_a_daemon_without_memory_serves_from_disk() -> None:
    residency = Residency({DISK: 100}, {DISK: LeastRecentlyUsed()})
    waiter = Waiter(1, 1, wants_lease=True, deadline_at_s=None)
    out = residency.handle(Requested(at_s=1.0, key="a", place=CPU, waiter=waiter, anywhere=True, modest=True))
    (measure,) = only(Measure, out)
    assert isinstance(measure, Measure)
    assert measure.place is DISK


# -- without room ------------------------------------------------------------------------------------------------------


def full_of_readers(cpu_bytes: int = 50) -> Anywhere:
    bench = Anywhere(cpu_bytes=cpu_bytes)
    bench.resident("hot", 50)
    bench.opened("hot")
    return bench


def test_without_room_in_memory_an_image_comes_to_disk() -> None:
    bench = full_of_readers()
    bench.open("a", session=2)
    out = bench.measured("a", 40)
    assert kinds(out) == [Abandon, Measure]
    (fill,) = bench.measured("a", 40, DISK)
    assert isinstance(fill, Fill)
    assert (fill.place, fill.source) == (DISK, None)
    assert place_of(bench.filled("a", DISK)) == "disk"


def test_an_image_that_is_not_kept_on_disk_insists_on_memory() -> None:
    bench = full_of_readers()
    bench.open("a", session=2, kept=False)
    assert isinstance(error_of(bench.measured("a", 40)), CapacityError)


def test_an_image_larger_than_memory_comes_to_disk() -> None:
    bench = Anywhere(cpu_bytes=30)
    bench.open("a")
    bench.measured("a", 40)
    bench.measured("a", 40, DISK)
    assert place_of(bench.filled("a", DISK)) == "disk"


def test_an_image_larger_than_both_is_refused_with_the_figures_of_the_disk() -> None:
    bench = Anywhere(cpu_bytes=30, disk_bytes=30)
    bench.open("a")
    bench.measured("a", 40)
    error = error_of(bench.measured("a", 40, DISK))
    assert isinstance(error, TooLargeError)
    assert "the disk tier" in str(error)


def fill_the_disk(bench: Anywhere) -> None:
    bench.resident("d", 1000, DISK)
    bench.ask("d", session=9, place=DISK)


def test_without_room_on_disk_either_an_open_insists_on_memory() -> None:
    bench = full_of_readers()
    fill_the_disk(bench)
    bench.open("a", session=2)
    bench.measured("a", 40)
    bench.measured("a", 40, DISK)
    error = error_of(bench.measured("a", 40))
    assert isinstance(error, CapacityError)
    assert "no room at cpu" in str(error)


def test_without_room_on_disk_either_an_open_with_a_deadline_waits_for_memory() -> None:
    bench = full_of_readers()
    fill_the_disk(bench)
    bench.open("a", session=2, deadline_in_s=60.0)
    bench.measured("a", 40)
    bench.measured("a", 40, DISK)
    assert bench.measured("a", 40) == []
    (free,) = bench.feed(SessionEnded, session=1)
    assert isinstance(free, Free)
    (fill,) = bench.freed("hot")
    assert isinstance(fill, Fill)
    assert place_of(bench.filled("a")) == "cpu"


def test_an_open_that_comes_back_from_the_disk_waits_for_no_lease() -> None:
    bench = full_of_readers()
    bench.resident("a", 40, DISK)
    bench.ask("a", session=9, place=DISK)
    bench.feed(EvictRequested, key="a", place=DISK, drain=True)
    bench.open("a", session=2)
    bench.ask("a", session=3, deadline_in_s=60.0)
    assert isinstance(error_of(bench.measured("a", 40)), CapacityError)
    replica = bench.residency.find("a", CPU)
    assert replica is not None
    assert len(replica.waiters) == 1, "the one with a deadline waits"


def test_two_leaving_replicas_refuse_an_open_without_a_deadline() -> None:
    bench = Anywhere()
    bench.resident("a", 40, CPU, DISK)
    bench.opened("a")
    bench.ask("a", place=DISK)
    for place in (CPU, DISK):
        bench.feed(EvictRequested, key="a", place=place, drain=True)
    assert isinstance(error_of(bench.open("a", session=2)), InUseError)


def test_memory_that_the_kernel_refuses_leaves_the_disk() -> None:
    bench = Anywhere()
    bench.open("a")
    bench.measured("a", 40)
    generation = bench.generation("a")
    error = CapacityError("/dev/shm is full")
    (measure,) = bench.feed(FillFailed, key="a", place=CPU, generation=generation, error=error)
    assert isinstance(measure, Measure)
    assert measure.place is DISK


def test_an_artifact_that_cannot_be_read_is_not_tried_at_the_next_place() -> None:
    bench = Anywhere()
    bench.open("a")
    bench.measured("a", 40)
    error = ArtifactError("cut short")
    out = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=error)
    assert error_of(out) is error


# -- what is worth room ------------------------------------------------------------------------------------------------


def test_one_open_evicts_nothing_that_is_in_demand() -> None:
    bench = Anywhere(cpu_bytes=50)
    bench.resident("hot", 50)
    bench.used("hot", 3)
    bench.open("once")
    assert kinds(bench.measured("once", 40)) == [Abandon, Measure]
    assert bench.state("hot") is State.SEALED


def test_one_open_evicts_what_is_in_demand_no_more() -> None:
    bench = Anywhere(cpu_bytes=50)
    bench.resident("cold", 50, CPU, DISK)
    bench.open("new")
    assert kinds(bench.measured("new", 40)) == [Free]


def test_an_open_that_names_memory_evicts_what_is_in_demand() -> None:
    bench = Anywhere(cpu_bytes=50)
    bench.resident("hot", 50)
    bench.used("hot", 3)
    bench.open("a")
    bench.ask("a", session=2)
    assert only(Free, bench.measured("a", 40))


def test_a_second_open_has_the_image_copied_into_memory_behind_its_reader() -> None:
    bench = Anywhere()
    bench.resident("a", 40, DISK)
    assert kinds(bench.open("a")) == [Grant]
    out = bench.open("a", session=2)
    assert place_of(out) == "disk"
    (fill,) = only(Fill, out)
    assert isinstance(fill, Fill)
    assert (fill.place, fill.source, fill.nbytes) == (CPU, DISK, 40)
    assert bench.filled("a") == []
    assert place_of(bench.open("a", session=3)) == "cpu"


def test_only_a_fill_that_no_request_waits_for_is_done_behind() -> None:
    bench = Anywhere(cpu_bytes=100)
    bench.resident("a", 40, DISK)
    bench.used("a", 1)
    (earned,) = only(Fill, bench.open("a"))
    assert isinstance(earned, Fill)
    assert earned.behind
    bench.resident("b", 40, DISK)
    (asked,) = only(Fill, bench.ask("b"))
    assert isinstance(asked, Fill)
    assert not asked.behind


def test_a_copy_that_use_has_earned_evicts_what_is_worth_less() -> None:
    bench = Anywhere(cpu_bytes=100)
    for key in ("x", "y"):
        bench.resident(key, 50, CPU, DISK)
    bench.used("x", 1)
    bench.resident("a", 60, DISK)
    bench.used("a", 1)
    out = bench.open("a")
    assert [each.key for each in only(Free, out) if isinstance(each, Free)] == ["y", "x"]
    assert only(Fill, out) == []
    bench.freed("y")
    (fill,) = bench.freed("x")
    assert isinstance(fill, Fill)
    assert fill.source is DISK


def test_a_copy_that_use_has_earned_spares_what_together_is_worth_as_much() -> None:
    bench = Anywhere(cpu_bytes=100)
    for key in ("x", "y"):
        bench.resident(key, 50, CPU, DISK)
        bench.used(key, 2)
    bench.resident("a", 60, DISK)
    bench.used("a", 3)
    assert kinds(bench.open("a")) == [Grant]
    assert bench.ask("b") != []
    assert kinds(bench.measured("b", 50)) == [Free], "the policy still knows its order"


def test_an_image_that_no_file_on_disk_backs_is_dear() -> None:
    bench = Anywhere(cpu_bytes=50)
    bench.ask("dear")
    bench.measured("dear", 50)
    bench.filled("dear", cost_s=1.0)
    bench.feed(SessionEnded, session=1)
    bench.used("dear", 1)
    bench.resident("a", 50, DISK)
    bench.used("a", 20)
    assert kinds(bench.open("a")) == [Grant]


def test_a_pinned_image_is_brought_to_memory_by_its_first_open() -> None:
    bench = Anywhere(cpu_bytes=50)
    bench.resident("hot", 50, CPU, DISK)
    bench.used("hot", 5)
    bench.resident("a", 40, DISK)
    bench.feed(PinChanged, key="a", place=CPU, pinned=True)
    out = bench.open("a")
    assert place_of(out) == "disk"
    assert kinds(only(Free, out)) == [Free]


def test_what_does_not_stay_in_memory_is_not_copied_there() -> None:
    bench = Anywhere()
    bench.resident("a", 40, DISK)
    for session in (1, 2, 3):
        assert kinds(bench.open("a", session=session, keep_alive_s=0)) == [Grant]


def test_what_exceeds_memory_is_not_copied_there() -> None:
    bench = Anywhere(cpu_bytes=30)
    bench.resident("a", 40, DISK)
    for session in (1, 2, 3):
        assert kinds(bench.open("a", session=session)) == [Grant]


def test_only_two_copies_run_behind_readers_at_once() -> None:
    bench = Anywhere()
    started = []
    for key in ("a", "b", "c"):
        bench.resident(key, 10, DISK)
        bench.used(key, 1)
        started += only(Fill, bench.open(key))
    assert [fill.key for fill in started if isinstance(fill, Fill)] == ["a", "b"]
    bench.filled("a")
    assert only(Fill, bench.open("c"))


def test_after_a_copy_that_failed_there_is_a_pause() -> None:
    bench = Anywhere()
    bench.resident("a", 40, DISK)
    bench.used("a", 1)
    assert only(Fill, bench.open("a"))
    failed = {"key": "a", "place": CPU, "generation": bench.generation("a")}
    assert kinds(bench.feed(FillFailed, **failed, error=CapacityError("/dev/shm is full"))) == [Failed]
    assert kinds(bench.open("a")) == [Grant]
    bench.now += 5.0
    assert only(Fill, bench.open("a"))


@pytest.mark.parametrize("deadline_in_s", [None, 3.0])
def test_an_open_beside_a_disk_image_that_is_being_evicted_names_that(deadline_in_s: float | None) -> None:
    bench = Anywhere(cpu_bytes=100)
    bench.resident("hot", 60)
    bench.opened("hot")
    bench.resident("a", 50, DISK)
    bench.open("a")
    bench.feed(EvictRequested, key="a", place=DISK, drain=True)
    bench.open("a", kept=False, session=2, deadline_in_s=deadline_in_s)
    out = bench.measured("a", 50)
    if deadline_in_s is not None:
        bench.now += deadline_in_s
        out = bench.feed(Tick)
    error = error_of(out)
    assert isinstance(error, CapacityError)
    assert str(error).startswith("the model is being evicted from disk and serves no new reader there")


def test_a_copy_waits_behind_those_that_stand_in_line() -> None:
    bench = Anywhere(cpu_bytes=100)
    bench.resident("hot", 60)
    bench.opened("hot")
    bench.ask("patient", session=2, deadline_in_s=60.0)
    bench.measured("patient", 80)
    bench.resident("a", 10, DISK)
    bench.used("a", 1)
    assert kinds(bench.open("a")) == [Grant]


def test_a_promotion_that_was_earned_is_told_apart_from_one_of_a_device() -> None:
    promotions, bench = Promotions(), Bench()
    bench.ask("a")
    replica = bench.residency.find("a", CPU)
    assert replica is not None
    waiter = promotions.begin_earned(replica, None)
    assert waiter.is_promotion
    assert promotions.end(waiter.ticket) is None
    assert promotions.earned == set()
    promotions.end_earned(waiter.ticket, 9.0)
    assert promotions.may_earn(1.0), "it did not fail: it had ended"


# -- artifacts in place ------------------------------------------------------------------------------------------------


class Files(Anywhere):
    """A bench whose artifacts may be served from their own files: under the key `in place KEY`."""

    def __init__(self, cpu_bytes: int = 100) -> None:
        super().__init__(cpu_bytes)
        places = {CPU: cpu_bytes, DISK: 1000, FILE: 1 << 60}
        self.residency = Residency(places, {place: LeastRecentlyUsed() for place in places})

    def open(self, key: str, *, session: int = 1, hashed: bool = True, **more: object) -> list[Instruction]:
        self.ticket += 1
        waiter = Waiter(self.ticket, session, wants_lease=True, deadline_at_s=None)
        own = f"in place {key}"
        asked = {"key": key if hashed else own, "place": CPU, "waiter": waiter, "keep": KeepAlive(None)}
        return self.feed(Requested, anywhere=True, in_place=own, **asked, **more)

    def in_place(self, key: str, nbytes: int, *, hashed: bool = False) -> None:
        """Open an artifact and close it: its files are open from now on."""
        self.open(key, hashed=hashed)
        self.measured(f"in place {key}", nbytes, FILE)
        (grant,) = only(Grant, self.filled(f"in place {key}", FILE))
        assert isinstance(grant, Grant)
        self.feed(Closed, lease=grant.lease.number, session=1)


def test_an_artifact_is_served_from_its_own_files_before_it_lies_anywhere() -> None:
    bench = Files()
    (measure,) = bench.open("a", hashed=False)
    assert isinstance(measure, Measure)
    assert (measure.key, measure.place) == ("in place a", FILE)
    (fill,) = bench.measured("in place a", 40, FILE)
    assert isinstance(fill, Fill)
    assert (fill.place, fill.source) == (FILE, None)
    assert place_of(bench.filled("in place a", FILE)) == "file"


@pytest.mark.parametrize("place", [CPU, DISK])
def test_what_lies_on_the_host_is_served_before_the_artifact(place: Place) -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.resident("a", 40, place)
    assert place_of(bench.open("a")) == str(place)


def test_a_load_that_runs_is_not_waited_for_if_the_files_can_be_read() -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.ask("a", session=2)
    assert place_of(bench.open("a")) == "file"


def test_an_artifact_that_was_not_hashed_is_not_copied() -> None:
    bench = Files()
    bench.in_place("a", 40)
    for session in (1, 2, 3):
        assert kinds(bench.open("a", session=session, hashed=False)) == [Grant]


def test_use_has_a_hashed_artifact_converted_into_memory_behind_its_readers() -> None:
    bench = Files()
    bench.in_place("a", 40)
    assert kinds(bench.open("a")) == [Grant]
    grant, measure = bench.open("a", session=2)
    assert place_of([grant]) == "file"
    assert isinstance(measure, Measure)
    assert (measure.key, measure.place) == ("a", CPU)
    (fill,) = bench.measured("a", 40)
    assert isinstance(fill, Fill)
    assert fill.source is None
    assert bench.filled("a") == []
    assert place_of(bench.open("a", session=3)) == "cpu"


def test_an_image_whose_artifact_can_be_mapped_is_cheap_to_lose() -> None:
    bench = Files(cpu_bytes=50)
    bench.in_place("old", 50, hashed=True)
    bench.open("old")
    bench.open("old", session=2)
    bench.measured("old", 50)
    bench.filled("old", cost_s=2.0)
    for session in (1, 2):
        bench.feed(SessionEnded, session=session)
    bench.in_place("new", 50, hashed=True)
    measured = [only(Measure, bench.open("new", session=session)) for session in range(1, 8)]
    assert any(measured), "two seconds to load it again are no reason: it would be mapped"
    assert [each.key for each in only(Free, bench.measured("new", 50)) if isinstance(each, Free)] == ["old"]


def test_a_hashed_artifact_whose_files_leave_is_served_from_memory() -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.open("a")
    bench.feed(EvictRequested, key="in place a", place=FILE, drain=True)
    (measure,) = bench.open("a", session=2)
    assert isinstance(measure, Measure)
    assert (measure.key, measure.place) == ("a", CPU)


def test_an_artifact_whose_files_leave_is_refused_until_it_is_hashed() -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.open("a")
    bench.feed(EvictRequested, key="in place a", place=FILE, drain=True)
    (refused,) = bench.open("a", session=2, hashed=False)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, InUseError)


def test_files_that_no_session_reads_are_closed_after_a_minute() -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.now += 58.0
    assert bench.feed(Tick) == []
    bench.now += 1.0
    (free,) = bench.feed(Tick)
    assert isinstance(free, Free)
    assert free.place is FILE


# -- as a whole --------------------------------------------------------------------------------------------------------


class Machine:
    """Images on disk, memory for some of them, and opens by Zipf's law; copies take a few opens."""

    COPY_TAKES = 3
    HELD_AT_ONCE = 4

    def __init__(self, policy: Policy, sizes: list[int], room: float) -> None:
        self.capacity = int(sum(sizes) * room)
        places = {CPU: self.capacity, DISK: sum(sizes)}
        self.residency = Residency(places, {CPU: policy, DISK: LeastRecentlyUsed()})
        self.now = 0.0
        self.copies: deque[tuple[float, Fill]] = deque()
        self.copied_bytes = 0
        self.held: deque[int] = deque()
        for number, nbytes in enumerate(sizes):
            self.residency.handle(Adopted(at_s=0.0, key=str(number), place=DISK, nbytes=nbytes))

    def open(self, key: str) -> bool:
        """Open an image; return whether it was served from memory."""
        self.now += 1.0
        while self.copies and self.copies[0][0] <= self.now:
            fill = self.copies.popleft()[1]
            about = {"key": fill.key, "place": fill.place, "generation": fill.generation}
            self.follow(self.residency.handle(Filled(at_s=self.now, cost_s=0.3, **about)))
        waiter = Waiter(int(self.now), 1, wants_lease=True, deadline_at_s=None)
        asked = Requested(at_s=self.now, key=key, place=CPU, waiter=waiter, anywhere=True, modest=True)
        out = self.residency.handle(asked)
        self.follow(out)
        (grant,) = only(Grant, out)
        assert isinstance(grant, Grant)
        self.held.append(grant.lease.number)
        if len(self.held) > self.HELD_AT_ONCE:
            self.follow(self.residency.handle(Closed(at_s=self.now, lease=self.held.popleft(), session=1)))
        return grant.lease.place is CPU

    def follow(self, out: list[Instruction]) -> None:
        for each in out:
            if isinstance(each, Fill):
                self.copies.append((self.now + self.COPY_TAKES, each))
                self.copied_bytes += each.nbytes
            elif isinstance(each, Free):
                about = {"key": each.key, "place": each.place, "generation": each.generation}
                self.follow(self.residency.handle(Freed(at_s=self.now, **about)))


def best_share(weights: list[float], sizes: list[int], capacity: int) -> float:
    """The share of opens that the best constant contents of memory serve, but for the last image that fits."""
    share, left = 0.0, capacity
    for number in sorted(range(len(sizes)), key=lambda each: -weights[each] / sizes[each]):
        if sizes[number] <= left:
            share, left = share + weights[number], left - sizes[number]
    return share / sum(weights)


@pytest.mark.parametrize("policy", [LeastRecentlyUsed, GreedyDualSizeFrequency])
@pytest.mark.parametrize("models", [12, 200])
def test_memory_serves_nearly_as_many_opens_as_the_best_contents_would(policy: type[Policy], models: int) -> None:
    chance = random.Random(5)
    sizes = [chance.choice((90, 110, 230, 350, 440, 475, 600, 1100)) for _ in range(models)]
    weights = [1.0 / rank for rank in range(1, models + 1)]
    machine = Machine(policy(), sizes, room=0.4)
    opens = chance.choices(range(models), weights, k=12_000)
    served = [machine.open(str(number)) for number in opens][2_000:]
    assert sum(served) / len(served) >= 0.95 * best_share(weights, sizes, machine.capacity)
    assert machine.copied_bytes < 5 * sum(sizes), "images in nearly equal demand push each other out in turn"


TORN = ArtifactError("torn")


def failing(bench: Files, key: str, error: TrimsError = TORN) -> list[Instruction]:
    """Use has an artifact converted behind its readers, which fails; returns what follows."""
    assert only(Measure, bench.open(key))
    made = bench.residency.find(key, CPU)
    assert made is not None
    about = {"key": key, "place": CPU, "generation": made.generation, "measurement": made.measuring}
    return bench.feed(MeasureFailed, **about, error=error)


def test_an_artifact_that_cannot_be_converted_is_tried_ever_less_often_and_told_once() -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.open("a")
    (failed,) = only(Failed, failing(bench, "a"))
    assert isinstance(failed, Failed)
    assert (failed.key, str(failed.error), failed.again_in_s) == ("a", "torn", FIRST_PAUSE_S)
    assert judged(bench, "a", "in place a") is Verdict.FAILED
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S):
        bench.now += pause_s - 3.0
        assert kinds(bench.open("a")) == [Grant]
        bench.now += 3.0
        assert only(Failed, failing(bench, "a")) == []


def test_a_copy_that_finds_no_memory_is_tried_every_few_seconds_and_told_once() -> None:
    bench, full = Files(), CapacityError("/dev/shm is full")
    bench.in_place("a", 40)
    bench.open("a")
    (failed,) = only(Failed, failing(bench, "a", full))
    assert isinstance(failed, Failed)
    assert (failed.error, failed.again_in_s) == (full, RETRY_EARNED_S)
    for _ in range(3):
        assert judged(bench, "a", "in place a") is Verdict.PUT_OFF
        assert kinds(bench.open("a")) == [Grant]
        bench.now += RETRY_EARNED_S
        assert only(Failed, failing(bench, "a", full)) == []
    bench.now += RETRY_EARNED_S
    bench.open("a")
    bench.measured("a", 40)
    bench.filled("a")
    assert bench.residency.failure_of("a") is None


@pytest.mark.parametrize("how", ["made after all", "another manifest"])
def test_a_failure_is_forgotten_once_it_says_nothing_any_more(how: str) -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.open("a")
    failing(bench, "a")
    if how == "another manifest":
        bench.feed(ManifestChanged, key="a")
    else:
        bench.ask("a", session=3)
        bench.measured("a", 40)
        bench.filled("a")
    assert bench.residency.failure_of("a") is None


def test_a_failure_holds_back_no_request_for_the_place_itself() -> None:
    bench = Files()
    bench.in_place("a", 40)
    bench.open("a")
    failing(bench, "a")
    assert only(Measure, bench.ask("a", session=3))


# -- why an image is in memory or not ----------------------------------------------------------------------------------


def judged(bench: Anywhere, key: str = "m", in_place: str | None = None) -> Verdict:
    return bench.residency.in_memory(key, in_place)


def test_a_verdict_says_what_keeps_an_image_out_of_memory() -> None:
    bench = Anywhere(cpu_bytes=100)
    assert judged(bench) is Verdict.NOT_READ
    bench.resident("m", 60, DISK)
    assert bench.residency.in_memory("m") is Verdict.RARELY_OPENED
    bench.residency.demand.opened("m")
    bench.residency.demand.opened("m")
    assert judged(bench) is Verdict.EARNED
    bench.resident("hot", 60)
    bench.used("hot", 9)
    assert judged(bench) is Verdict.NOT_WORTH_IT
    bench.feed(PinChanged, key="m", place=CPU, pinned=True)
    assert judged(bench) is Verdict.EARNED
    bench.resident("large", 101, DISK)
    bench.residency.demand.opened("large")
    bench.residency.demand.opened("large")
    assert judged(bench, "large") is Verdict.TOO_LARGE


@pytest.mark.parametrize("pinned", ["", "m"])
def test_a_verdict_says_that_what_is_pinned_leaves_no_room(pinned: str) -> None:
    bench = Anywhere(cpu_bytes=100)
    bench.resident("m", 60, DISK)
    bench.residency.demand.opened("m")
    bench.residency.demand.opened("m")
    bench.resident("never opened", 60)
    for key in ("never opened", pinned):
        bench.feed(PinChanged, key=key, place=CPU, pinned=True)
    assert judged(bench) is Verdict.NO_ROOM


def test_a_verdict_on_an_image_that_leaves_memory_says_so() -> None:
    bench = Anywhere()
    bench.resident("m", 60)
    bench.opened("m")
    bench.feed(ReplicaBroken, key="m", place=CPU, generation=bench.generation("m"), reason="changed")
    assert judged(bench) is Verdict.LEAVING


def test_a_verdict_on_an_image_that_is_in_memory_or_comes_there() -> None:
    bench = Anywhere()
    bench.open("m")
    assert judged(bench) is Verdict.COMING
    bench.measured("m", 60)
    bench.filled("m")
    assert judged(bench) is Verdict.THERE


def test_an_artifact_in_place_must_be_hashed_first() -> None:
    places = {CPU: 100, DISK: 1000, FILE: 1000}
    bench = Anywhere()
    bench.residency = Residency(places, {place: LeastRecentlyUsed() for place in places})
    bench.resident("identity", 60, FILE)
    assert judged(bench, "identity", "identity") is Verdict.NOT_HASHED
    bench.residency.demand.opened("m")
    assert judged(bench, "m", "identity") is Verdict.RARELY_OPENED
    bench.residency.demand.opened("m")
    assert judged(bench, "m", "identity") is Verdict.EARNED


def test_without_shared_memory_there_is_nothing_to_judge() -> None:
    bench = Anywhere()
    bench.residency = Residency({DISK: 1000}, {DISK: LeastRecentlyUsed()})
    bench.resident("m", 60, DISK)
    assert judged(bench) is Verdict.NO_MEMORY
