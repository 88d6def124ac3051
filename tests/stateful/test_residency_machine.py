"""Residency against a ledger of its own: random events in any order, and books kept from instructions alone.

The ledger never looks into `Residency`: it counts what a store that carried the instructions out would hold, so it
cannot agree with a bug in the code's own sums.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trims.core.errors import ConversionError, InUseError, TooLargeError
from trims.core.lease import Waiter
from trims.core.place import ANY_GPU, CPU, DISK, GPU, Place, TierKind
from trims.core.policy.eviction import FirstInFirstOut, GreedyDualSizeFrequency, LeastFrequentlyUsed, LeastRecentlyUsed
from trims.core.residency.events import (
    Abandon,
    Changed,
    Closed,
    Event,
    EvictRequested,
    Fill,
    Filled,
    FillFailed,
    Free,
    Freed,
    Grant,
    KeepAlive,
    Lost,
    Measure,
    Measured,
    MeasureFailed,
    MemoryShort,
    PinChanged,
    PlaceLost,
    Ready,
    Refuse,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
    WorkspaceKnown,
)
from trims.core.residency.residency import Residency

SIZES = {"a": 10, "b": 30, "c": 50, "d": 60, "e": 101}
OTHER_GPU = Place(TierKind.GPU, 1)
CAPACITIES = {CPU: 100, DISK: 120, GPU: 90, OTHER_GPU: 70}
RESERVE = 12
UNIT = 8
KEYS = st.sampled_from(sorted(SIZES))
PLACES = st.sampled_from(sorted(CAPACITIES, key=str))
WANTED = st.sampled_from([*sorted(CAPACITIES, key=str), ANY_GPU])
SESSIONS = st.integers(1, 4)
POLICIES = (LeastRecentlyUsed, LeastFrequentlyUsed, FirstInFirstOut, GreedyDualSizeFrequency)


class ResidencyMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.residency: Residency | None = None
        self.now = 0.0
        self.ticket = 0
        self.unanswered: dict[int, Waiter] = {}
        self.wanted: dict[int, tuple[str, Place]] = {}
        self.pins: set[tuple[str, Place]] = set()
        self.leases: dict[int, tuple[str, Place, int, int]] = {}
        self.memory: dict[tuple[str, Place], tuple[int, int]] = {}
        self.filling: dict[tuple[str, Place], Fill] = {}
        self.measuring: dict[tuple[str, Place], Measure] = {}
        self.told: list[tuple[type[Event], dict[str, object]]] = []
        self.freeing: dict[tuple[str, Place], int] = {}
        self.sealed: set[tuple[str, Place]] = set()
        self.peers: set[tuple[Place, Place]] = set()
        self.work = dict.fromkeys(SIZES, 0)

    @precondition(lambda self: self.residency is None)
    @rule(policy=st.sampled_from(POLICIES), peers=st.sets(st.sampled_from([(GPU, OTHER_GPU), (OTHER_GPU, GPU)])))
    def start(self, policy: type, peers: set[tuple[Place, Place]]) -> None:
        self.peers = peers
        self.residency = Residency(
            CAPACITIES,
            {place: policy() for place in CAPACITIES},
            reserves={GPU: RESERVE, OTHER_GPU: RESERVE},
            units={OTHER_GPU: UNIT},
            peers=peers,
        )

    def feed(self, event_class: type[Event], **fields: object) -> None:
        assert self.residency is not None
        self.now += 1.0
        out = self.residency.handle(event_class(at_s=self.now, **fields))
        self.residency.validate()
        for instruction in out:
            self.carry_out(instruction)

    def report(self, event_class: type[Event], **fields: object) -> None:
        """Feed a completion, and remember it: it may come once more."""
        self.told = [*self.told[-20:], (event_class, fields)]
        self.feed(event_class, **fields)

    def carry_out(self, it: object) -> None:
        if isinstance(it, Grant):
            self.answered(it.ticket)
            where = (it.lease.key, it.lease.place)
            assert where in self.sealed, "granted what is not sealed"
            assert it.lease.place.is_in(self.wanted[it.ticket][1]), "granted elsewhere"
            assert self.memory[where][0] == it.lease.generation, "granted another incarnation"
            self.leases[it.lease.number] = (*where, it.lease.session, it.lease.generation)
        elif isinstance(it, Ready):
            self.answered(it.ticket)
            assert (it.key, it.place) in self.sealed
        elif isinstance(it, Refuse):
            deadline = self.answered(it.ticket).deadline_at_s
            for_good = isinstance(it.error, (TooLargeError, ConversionError))
            assert for_good or deadline is None or deadline <= self.now, "not waited as long as was said"
        elif isinstance(it, Measure):
            self.measuring[it.key, it.place] = it
        elif isinstance(it, Abandon):
            pass  # its measurement may be reported yet, late
        elif isinstance(it, Fill):
            self.fill(it)
        elif isinstance(it, Free):
            self.free(it)
        elif isinstance(it, Lost):
            assert self.leases.pop(it.lease.number)[:2] == (it.lease.key, it.lease.place)
        else:
            assert isinstance(it, Changed)

    def answered(self, ticket: int) -> Waiter:
        assert ticket in self.unanswered, "answered twice, or never asked"
        return self.unanswered.pop(ticket)

    def fill(self, it: Fill) -> None:
        where = (it.key, it.place)
        assert where not in self.memory, "two fills of one replica, or one over live memory"
        assert it.nbytes == SIZES[it.key]
        if it.place.tier is TierKind.GPU:
            assert it.source is not None, "nothing is converted on a device"
            from_device = it.source.tier is TierKind.GPU
            assert not from_device or (it.place, it.source) in self.peers, "a copy between devices that are no peers"
        if it.source is not None:
            assert (it.key, it.source) in self.sealed, "reads from what is not sealed"
        self.memory[where] = (it.generation, it.nbytes)
        self.filling[where] = it
        assert self.held(it.place) <= CAPACITIES[it.place], "more memory given than there is"
        if it.place.tier is TierKind.GPU:
            readers = {(key, session) for key, place, session, _ in self.leases.values() if place == it.place}
            work = sum(self.work[key] for key, _ in readers)
            taken = self.held(it.place) + max(0, work - RESERVE)
            assert taken <= CAPACITIES[it.place], "took what readers need for their work"

    def held(self, place: Place) -> int:
        unit = UNIT if place == OTHER_GPU else 1
        return sum(-(-size // unit) * unit for (_, there), (_, size) in self.memory.items() if there == place)

    def waits_at(self, ticket: int) -> tuple[str, Place]:
        """Image and place that a request waits for; of one for any device, the device that was chosen for it."""
        key, place = self.wanted[ticket]
        assert self.residency is not None
        if place is ANY_GPU:
            place = self.residency.waiters.by_ticket[ticket].place
            assert place in (GPU, OTHER_GPU)
        return key, place

    def work_at(self, place: Place) -> int:
        """Count work at a place from leases and waiters for a running fill: each session once for each image."""
        readers = {(key, session) for key, there, session, _ in self.leases.values() if there == place}
        for ticket, waiter in self.unanswered.items():
            where = self.waits_at(ticket)
            if waiter.session is not None and where[1] == place and where in self.filling:
                readers.add((where[0], waiter.session))
        return sum(self.work[key] for key, _ in readers)

    def free(self, it: Free) -> None:
        where = (it.key, it.place)
        assert where in self.sealed, "freed what is not sealed"
        assert not any(lease[:2] == where for lease in self.leases.values()), "freed under a lease"
        assert not any(f.source == it.place and f.key == it.key for f in self.filling.values()), "freed under a copy"
        self.sealed.discard(where)
        self.freeing[where] = it.generation

    # -- what clients do ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.residency is not None)
    @rule(key=KEYS, place=WANTED, session=SESSIONS, lease=st.booleans(), patience=st.sampled_from([None, 0, 3, 50]),
          keep=st.sampled_from([None, 0.0, 5.0]))  # fmt: skip
    def ask(self, key: str, place: Place, session: int, lease: bool, patience: int | None, keep: float | None) -> None:
        self.ticket += 1
        deadline = None if patience is None else self.now + patience
        waiter = Waiter(self.ticket, session if lease else None, lease, deadline)
        self.unanswered[self.ticket] = waiter
        self.wanted[self.ticket] = (key, place)
        work = self.work[key]
        self.feed(Requested, key=key, place=place, waiter=waiter, keep=KeepAlive(keep), workspace_bytes=work)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.leases)))
        session = self.leases.pop(number)[2]
        self.feed(Closed, lease=number, session=session)

    @precondition(lambda self: self.residency is not None)
    @rule(session=SESSIONS)
    def end_session(self, session: int) -> None:
        self.leases = {number: lease for number, lease in self.leases.items() if lease[2] != session}
        self.unanswered = {ticket: waiter for ticket, waiter in self.unanswered.items() if waiter.session != session}
        self.feed(SessionEnded, session=session)

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.unanswered)))
        del self.unanswered[ticket]
        self.feed(WaiterLeft, ticket=ticket)

    @precondition(lambda self: self.residency is not None)
    @rule(key=KEYS, place=PLACES, drain=st.booleans())
    def evict(self, key: str, place: Place, drain: bool) -> None:
        try:
            self.feed(EvictRequested, key=key, place=place, drain=drain)
        except InUseError:
            assert self.residency is not None
            self.residency.validate()

    @precondition(lambda self: self.residency is not None)
    @rule(key=KEYS, place=PLACES, pinned=st.booleans())
    def pin(self, key: str, place: Place, pinned: bool) -> None:
        (self.pins.add if pinned else self.pins.discard)((key, place))
        self.feed(PinChanged, key=key, place=place, pinned=pinned)

    @precondition(lambda self: self.residency is not None)
    @rule(key=KEYS, nbytes=st.sampled_from([0, 5, 11, 30]))
    def work_is_known(self, key: str, nbytes: int) -> None:
        self.work[key] = nbytes
        self.feed(WorkspaceKnown, key=key, nbytes=nbytes)

    @precondition(lambda self: self.residency is not None)
    @rule(passed_s=st.integers(0, 60))
    def time_passes(self, passed_s: int) -> None:
        self.now += passed_s
        self.feed(Tick)
        deadlines = [waiter.deadline_at_s for waiter in self.unanswered.values()]
        assert not any(deadline is not None and deadline <= self.now for deadline in deadlines), "waits too long"

    # -- what the store reports --------------------------------------------------------------------------------------

    @precondition(lambda self: self.measuring)
    @rule(data=st.data(), fails=st.booleans())
    def measured(self, data: st.DataObject, fails: bool) -> None:
        where = data.draw(st.sampled_from(sorted(self.measuring, key=str)))
        it = self.measuring.pop(where)
        facts = {"key": it.key, "place": it.place, "generation": it.generation, "measurement": it.measurement}
        if fails:
            self.report(MeasureFailed, error=ConversionError("no"), **facts)
        else:
            self.report(Measured, nbytes=SIZES[it.key], **facts)

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), fails=st.booleans())
    def fill_ends(self, data: st.DataObject, fails: bool) -> None:
        where = data.draw(st.sampled_from(sorted(self.filling, key=str)))
        fill = self.filling.pop(where)
        facts = {"key": fill.key, "place": fill.place, "generation": fill.generation}
        if fails:
            del self.memory[where]
            self.report(FillFailed, error=ConversionError("no"), **facts)
        else:
            self.sealed.add(where)
            self.report(Filled, cost_s=1.0, **facts)

    @precondition(lambda self: self.freeing)
    @rule(data=st.data())
    def freed(self, data: st.DataObject) -> None:
        where = data.draw(st.sampled_from(sorted(self.freeing, key=str)))
        generation = self.freeing.pop(where)
        del self.memory[where]
        self.report(Freed, key=where[0], place=where[1], generation=generation)

    @precondition(lambda self: self.measuring or self.filling or self.freeing)
    @rule()
    def all_work_ends_well(self) -> None:
        """Rare in single steps, and where most of the interesting states begin."""
        for _ in range(200):
            if not (self.measuring or self.filling or self.freeing):
                return
            self.finish_one()
        raise AssertionError("one brings about the work of the other for ever")

    @precondition(lambda self: self.sealed)
    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        key, place = data.draw(st.sampled_from(sorted(self.sealed, key=str)))
        self.feed(ReplicaBroken, key=key, place=place, generation=self.memory[key, place][0], reason="bit flip")

    @precondition(lambda self: any(place.tier is TierKind.GPU for _, place in self.sealed))
    @rule(place=st.sampled_from([GPU, OTHER_GPU]))
    def a_device_is_lost(self, place: Place) -> None:
        self.feed(PlaceLost, place=place, reason="its keeper has ended")
        assert not any(lease[1] == place for lease in self.leases.values()), "a lease for nothing"

    @precondition(lambda self: self.residency is not None)
    @rule(place=PLACES, missing_bytes=st.integers(1, 60))
    def memory_is_short(self, place: Place, missing_bytes: int) -> None:
        self.feed(MemoryShort, place=place, missing_bytes=missing_bytes)

    @precondition(lambda self: self.residency is not None)
    @rule(key=KEYS, place=PLACES)
    def stale_news(self, key: str, place: Place) -> None:
        for kind, more in ((Measured, {"nbytes": 7, "measurement": 0}), (Filled, {"cost_s": 1.0}), (Freed, {})):
            self.feed(kind, key=key, place=place, generation=0, **more)

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def a_completion_comes_once_more(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.told) - 1))
        event_class, fields = self.told[number]
        self.feed(event_class, **fields)

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def leases_agree(self) -> None:
        if self.residency is not None:
            assert set(self.residency.leases.by_number) == set(self.leases)

    @invariant()
    def work_agrees(self) -> None:
        if self.residency is not None:
            for place in (GPU, OTHER_GPU):
                assert self.residency.capacity.at[place].workspace_bytes == self.work_at(place)

    @invariant()
    def idle_replicas_make_way_for_work(self) -> None:
        for place in (GPU, OTHER_GPU):
            going = {where for where in self.freeing if where[1] == place}
            going |= {(fill.key, place) for fill in self.filling.values() if fill.source == place}
            least = self.held(place) - sum(-(-SIZES[key] // UNIT) * UNIT for key, _ in going)
            if least + max(0, self.work_at(place) - RESERVE) > CAPACITIES[place]:
                leased = {lease[:2] for lease in self.leases.values()}
                assert not {where for where in self.sealed if where[1] == place} - leased - going - self.pins

    @invariant()
    def no_waiter_without_a_deadline_waits_for_readers(self) -> None:
        if not (self.measuring or self.filling or self.freeing):
            assert all(waiter.deadline_at_s is not None for waiter in self.unanswered.values())

    def teardown(self) -> None:
        """End all sessions and all work: no waiter is left, nothing is left half done."""
        if self.residency is None:
            return
        for number in list(self.leases):
            self.feed(Closed, lease=number, session=self.leases.pop(number)[2])
        pins = list(self.residency.capacity.pins)
        for key, place in pins:
            self.feed(PinChanged, key=key, place=place, pinned=False)
        for _ in range(1000):
            if self.leases:
                number, lease = next(iter(self.leases.items()))
                del self.leases[number]
                self.feed(Closed, lease=number, session=lease[2])
            elif self.measuring or self.filling or self.freeing:
                self.finish_one()
            elif self.unanswered:  # the memory that the machine lacked is believed to lack for a while
                self.time_passes(60)
            else:
                break
        assert not self.unanswered, "a waiter waits for ever"
        left = defaultdict(int)
        for (_, place), (_, size) in self.memory.items():
            left[place] += -(-size // UNIT) * UNIT if place == OTHER_GPU else size
        assert dict(left) == {place: used for place, used in self.residency.capacity.charged.items() if used}

    def finish_one(self) -> None:
        if self.freeing:
            where, generation = next(iter(self.freeing.items()))
            del self.freeing[where], self.memory[where]
            self.feed(Freed, key=where[0], place=where[1], generation=generation)
        elif self.filling:
            where, fill = next(iter(self.filling.items()))
            del self.filling[where]
            self.sealed.add(where)
            self.feed(Filled, key=fill.key, place=fill.place, generation=fill.generation, cost_s=1.0)
        else:
            where, it = next(iter(self.measuring.items()))
            del self.measuring[where]
            facts = {"key": it.key, "place": it.place, "generation": it.generation, "measurement": it.measurement}
            self.feed(Measured, nbytes=SIZES[it.key], **facts)


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=200, stateful_step_count=80, deadline=None)
