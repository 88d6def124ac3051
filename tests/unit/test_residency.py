"""Residency, event by event: what goes in, which instructions come out."""

from __future__ import annotations

import pytest

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
    Changed,
    Closed,
    DrainRequested,
    Event,
    EvictRequested,
    Fill,
    Filled,
    FillFailed,
    Free,
    Freed,
    Grant,
    Instruction,
    Measure,
    Measured,
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
from trims.core.place import CPU, DISK, GPU, Place
from trims.core.policy import LeastRecentlyUsed
from trims.core.replica import Replica, State
from trims.core.residency import Residency


class Bench:
    """A residency with a clock of its own, validated after every event."""

    def __init__(self, cpu_bytes: int = 100, disk_bytes: int = 1000, gpu_bytes: int = 100) -> None:
        places = {CPU: cpu_bytes, DISK: disk_bytes, GPU: gpu_bytes}
        self.residency = Residency(places, {place: LeastRecentlyUsed() for place in places})
        self.now = 0.0
        self.ticket = 0

    def feed(self, kind: type[Event], **fields: object) -> list[Instruction]:
        self.now += 1.0
        out = self.residency.handle(kind(at_s=self.now, **fields))
        self.residency.validate()
        return [each for each in out if not isinstance(each, Changed)]

    def ask(
        self,
        key: str,
        *,
        session: int | None = 1,
        place: Place = CPU,
        deadline_in_s: float | None = None,
        lease: bool = True,
        keep_alive_s: float | None = None,
    ) -> list[Instruction]:
        self.ticket += 1
        deadline = None if deadline_in_s is None else self.now + 1.0 + deadline_in_s
        waiter = Waiter(self.ticket, session, lease, deadline)
        return self.feed(Requested, key=key, place=place, waiter=waiter, keep_alive_s=keep_alive_s)

    def generation(self, key: str, place: Place = CPU) -> int:
        replica = self.residency.find(key, place)
        assert replica is not None
        return replica.generation

    def measured(self, key: str, nbytes: int, place: Place = CPU) -> list[Instruction]:
        return self.feed(Measured, key=key, place=place, generation=self.generation(key, place), nbytes=nbytes)

    def filled(self, key: str, place: Place = CPU, cost_s: float = 1.0) -> list[Instruction]:
        return self.feed(Filled, key=key, place=place, generation=self.generation(key, place), cost_s=cost_s)

    def freed(self, key: str, place: Place = CPU) -> list[Instruction]:
        return self.feed(Freed, key=key, place=place, generation=self.generation(key, place))

    def resident(self, key: str, nbytes: int, *places: Place) -> None:
        """Have an idle, sealed replica at each place; at cpu if none is named."""
        for place in places or (CPU,):
            self.feed(Adopted, key=key, place=place, nbytes=nbytes)

    def opened(self, key: str, session: int = 1) -> int:
        """Open a resident model; returns the lease's number."""
        (grant,) = self.ask(key, session=session)
        assert isinstance(grant, Grant)
        return grant.lease.number

    def state(self, key: str, place: Place = CPU) -> State:
        replica = self.residency.find(key, place)
        return replica.state if replica else State.ABSENT


def kinds(instructions: list[Instruction]) -> list[type[Instruction]]:
    return [type(each) for each in instructions]


def error_of(instructions: list[Instruction]) -> Exception:
    (refusal,) = [each for each in instructions if isinstance(each, Refuse)]
    return refusal.error


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
    assert bench.residency.room.free_bytes(CPU) == 0
    assert bench.state("b") is State.QUEUED
    assert kinds(bench.freed("a")) == [Fill]
    assert bench.residency.room.free_bytes(CPU) == 90


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
    assert "50 bytes needed, 0 free of 100; 60 leased" in str(error)
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


def test_a_large_image_that_waits_for_room_is_not_overtaken_by_small_ones() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 60)
    lease = bench.opened("held")
    bench.ask("large", session=2, deadline_in_s=100.0)
    bench.measured("large", 90)
    bench.ask("small", session=3, deadline_in_s=100.0)
    assert bench.measured("small", 10) == []
    bench.feed(Closed, lease=lease, session=1)
    assert [fill.key for fill in bench.freed("held") if isinstance(fill, Fill)] == ["large", "small"]


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
    assert "60 pinned" in str(error)
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
    assert bench.residency.room.free_bytes(CPU) == 100


def test_a_failed_measurement_leaves_nothing() -> None:
    bench = Bench()
    bench.ask("a")
    out = bench.feed(FillFailed, key="a", place=CPU, generation=bench.generation("a"), error=ArtifactError("torn"))
    assert kinds(out) == [Refuse]
    assert bench.state("a") is State.ABSENT


def test_completions_of_an_earlier_incarnation_are_ignored() -> None:
    bench = Bench()
    bench.ask("a")
    stale = bench.generation("a")
    bench.feed(FillFailed, key="a", place=CPU, generation=stale, error=ArtifactError("torn"))
    bench.ask("a")
    for kind, more in ((Measured, {"nbytes": 1}), (Filled, {"cost_s": 1.0}), (Freed, {})):
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
        (lambda r: r.room.charged.__setitem__(CPU, 1), "charged"),
        (lambda r: r.replicas["a", CPU].leases.add(99), "lease 99"),
        (lambda r: setattr(r.replicas["a", CPU], "state", State.FREEING), "leased in a state"),
        (lambda r: r.leases.by_number.clear(), "lease"),
        (lambda r: setattr(r.replicas["a", CPU], "source", DISK), "source"),
        (
            lambda r: r.replicas["a", CPU].waiters.update({5: Waiter(5, 1, True, None)}),
            "sealed with a waiter",
        ),
        (lambda r: r.room.capacities.__setitem__(CPU, 10), "capacity"),
        (lambda r: r.waiters.by_ticket.update({5: r.replicas["a", CPU]}), "waiters differ"),
        (lambda r: r.shelf.by_key.clear(), "the index by key has it at"),
        (lambda r: r.shelf.by_key["a"].update({DISK: r.replicas["a", CPU]}), "the index by key has it at"),
        (lambda r: r.shelf.by_key.update({"b": {}}), "the index by key has it at"),
        (lambda r: r.shelf.by_key["a"].update({CPU: Replica("a", CPU, 99)}), r"index by key has it at cpu \(99\)"),
        (lambda r: r.shelf.replicas.clear(), "the index by key has it at"),
    ],
)
def test_validate_notices_damaged_books(damage: object, rule: str) -> None:
    bench = Bench()
    bench.resident("a", 40)
    bench.opened("a")
    damage(bench.residency)  # type: ignore[operator]
    with pytest.raises(InvariantError, match=rule):
        bench.residency.validate()


def test_when_who_held_the_others_back_gives_up_each_of_them_gets_room_or_an_answer() -> None:
    bench = Bench(cpu_bytes=100)
    bench.resident("held", 60)
    bench.opened("held")
    for session, (key, nbytes, deadline_in_s) in enumerate([("p", 90, 10.0), ("b", 70, None), ("c", 30, None)], 2):
        bench.ask(key, session=session, deadline_in_s=deadline_in_s)
        assert bench.measured(key, nbytes) == []
    bench.now += 20.0
    out = bench.feed(Tick)
    assert [it.ticket for it in out if isinstance(it, Refuse)] == [2, 3]
    (fill,) = [it for it in out if isinstance(it, Fill)]
    assert fill.key == "c"
