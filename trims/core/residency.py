"""Residency: which image is where, who reads it, who waits, and what must go. A pure state machine.

`handle(event)` changes the books and returns instructions; it does no input or output, reads no clock and never blocks.
This is the only place where a replica's state changes. Replicas are kept and found on the `shelf`, instructions are
written by the `outbox`. Not covered: how bytes move (the store's runner) and what a model's name means (the catalog).
The caller serialises calls.

Rules kept here, each checked by `validate`:
capacity is never exceeded; a replica with a lease or a running copy is never freed; a fill reads only from a sealed
replica it has borrowed; one fill per image and place; room is given in order of arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core import books
from trims.core.errors import DeadlineError, DrainingError, InternalError, InUseError, TooLargeError, TrimsError
from trims.core.events import (
    Adopted,
    Closed,
    DrainRequested,
    Event,
    EvictRequested,
    Filled,
    FillFailed,
    Freed,
    Instruction,
    Measured,
    PinChanged,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
)
from trims.core.lease import Leases, Waiters
from trims.core.outbox import Outbox
from trims.core.place import CPU, Tier
from trims.core.promotion import Promotions, host_for
from trims.core.replica import LEASABLE, Replica, State
from trims.core.room import Room
from trims.core.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.core.lease import Lease, Waiter
    from trims.core.place import Place
    from trims.core.policy import Policy


class Residency:
    """The books of one daemon.

    Args:
        capacities: Bytes each place may hold; a place that is not listed does not exist.
        policies: One policy instance for each place.
    """

    def __init__(self, capacities: Mapping[Place, int], policies: Mapping[Place, Policy]) -> None:
        self.room = Room(capacities, policies)
        self.shelf = Shelf()
        self.leases = Leases()
        self.waiters = Waiters()
        self.promotions = Promotions()
        self.draining = False
        self._queues: dict[Place, list[Replica]] = {place: [] for place in capacities}
        self._out = Outbox()
        self._handlers: dict[type[Event], Callable[..., None]] = {
            Requested: self._requested,
            Closed: self._lease_closed,
            SessionEnded: self._session_ended,
            WaiterLeft: self._waiter_left,
            Measured: self._measured,
            Filled: self._filled,
            FillFailed: self._fill_failed,
            Freed: self._freed,
            EvictRequested: self._evict_requested,
            ReplicaBroken: self._replica_broken,
            PinChanged: self._pin_changed,
            Adopted: self._adopted,
            DrainRequested: self._drain_requested,
            Tick: self._tick,
        }

    # -- the door and questions ------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event in; returns what the store must do, in order.

        Raises:
            InUseError: An eviction without `drain` met a lease, a copy or a fill; nothing changed.
            InvalidTransitionError: A bug; the message tells the replica's story.
        """
        self._out = Outbox()
        self._handlers[type(event)](event)
        return self._out.instructions

    @property
    def replicas(self) -> Mapping[tuple[str, Place], Replica]:
        """All of them, by image key and place."""
        return self.shelf.replicas

    def find(self, key: str, place: Place) -> Replica | None:
        """The replica, in whatever state, or None."""
        return self.shelf.find(key, place)

    def places_of(self, key: str) -> list[Replica]:
        """All replicas of an image, fastest place first."""
        return self.shelf.places_of(key)

    def next_due_s(self) -> float | None:
        """Clock time at which the next deadline or keep-alive is due, or None."""
        return self.shelf.next_due_s()

    def validate(self) -> None:
        """Check every invariant from scratch. Raises InvariantError naming the first that is broken."""
        books.validate(self, self._queues)

    # -- requests --------------------------------------------------------------------------------------------------

    def _requested(self, event: Requested) -> None:
        if self.draining and event.waiter.session is not None:
            self._refuse(event.waiter, DrainingError("the daemon is draining and takes no new opens"), event.at_s)
            return
        if event.place not in self.room.capacities:
            self._refuse(event.waiter, books.no_such_place(event.place, self.room.capacities), event.at_s)
            return
        replica = self.find(event.key, event.place)
        if replica is None:
            replica = self._enqueue(event.key, event.place, event.at_s)
        replica.keep_alive_s = event.keep_alive_s
        if replica.state is State.SEALED:
            self._serve(replica, event.waiter, event.at_s, warm=True)
        elif replica.state is State.DRAINING and event.waiter.deadline_at_s is None:
            error = InUseError(
                "the model is being evicted and waits for its last reader; set a deadline to wait for it"
            )
            self._refuse(event.waiter, error, event.at_s)
        else:
            self.waiters.join(replica, event.waiter)
            self._admit(event.place, event.at_s)

    def _enqueue(self, key: str, place: Place, at_s: float) -> Replica:
        replica = self.shelf.add(key, place)
        self._queues[place].append(replica)
        self._step(replica, State.QUEUED, at_s, "first waiter")
        return replica

    def _serve(self, replica: Replica, waiter: Waiter, at_s: float, *, warm: bool) -> None:
        if not waiter.wants_lease or waiter.session is None:
            self._touch(replica, at_s)
            if not self.promotions.is_own(waiter):
                self._out.ready(waiter, replica)
            self.promotions.end(waiter)
            return
        lease = self.leases.grant(waiter.session, replica.key, replica.place, replica.generation)
        replica.leases.add(lease.number)
        replica.uses += 1
        self._touch(replica, at_s)
        self.room.used(replica)
        self._out.grant(waiter, replica, lease, warm=warm)

    def _refuse(self, waiter: Waiter, error: TrimsError, at_s: float) -> None:
        """Tell a waiter; one of our own, who waited for the host on a device's behalf, passes it on."""
        if not self.promotions.is_own(waiter):
            self._out.refuse(waiter, error)
            return
        promotion = self.promotions.end(waiter)
        if promotion is None:
            return  # nobody wants it on the device any more
        replica, host = promotion
        another = host_for(self.room.capacities, after=host) if isinstance(error, TooLargeError) else None
        if another is None:
            self._refuse_all(replica, error, at_s)
        else:
            self._bring_to(another, replica, at_s)

    def _waiter_left(self, event: WaiterLeft) -> None:
        replica = self.waiters.leave(event.ticket)
        if replica is not None:
            self._drop_if_unwanted(replica, event.at_s)

    def _drop_if_unwanted(self, replica: Replica, at_s: float) -> None:
        """A queued replica nobody waits for leaves the queue; a running fill is finished: the cache is persistent."""
        if replica.state is State.QUEUED and not replica.waiters:
            self._queues[replica.place].remove(replica)
            self._remove(replica, at_s, "last waiter gone")
            self._out.abandon(replica)
            self._admit(replica.place, at_s)

    # -- room ------------------------------------------------------------------------------------------------------

    def _admit(self, place: Place, at_s: float) -> None:
        """Start queued fills in order of arrival, for as long as there is room or room can be made.

        An image whose size is still being measured holds nobody up; one that waits for room does, or a large image
        would starve behind small ones.
        """
        for replica in list(self._queues[place]):
            if replica.state is not State.QUEUED or not self._know_size(replica, at_s):
                continue
            if not self._make_room(replica, at_s):
                return
            if replica.state is State.QUEUED:
                self._start_fill(replica, at_s)

    def _know_size(self, replica: Replica, at_s: float) -> bool:
        source = self.shelf.source_of(replica)
        if source is not None:
            replica.nbytes = source.nbytes
            return True
        host = host_for(self.room.capacities)
        if replica.place.tier is Tier.GPU and host is not None:
            self._bring_to(host, replica, at_s)
            return False
        if not replica.measured and not replica.measuring:
            replica.measuring = True
            self._out.measure(replica)
        return replica.measured

    def _bring_to(self, host: Place, replica: Replica, at_s: float) -> None:
        """Wait for the image at a host place on behalf of a device, where nothing can be converted."""
        if not self.promotions.is_waiting(replica):
            there = self.find(replica.key, host)
            keep_alive_s = there.keep_alive_s if there is not None else None
            waiter = self.promotions.begin(replica, host)
            self._requested(Requested(at_s=at_s, key=replica.key, place=host, waiter=waiter, keep_alive_s=keep_alive_s))

    def _make_room(self, replica: Replica, at_s: float) -> bool:
        """True if the replica fits now, or is not wanted any more. Evicts what it needs; refuses who will not wait."""
        place, need, everything = replica.place, replica.nbytes, self.replicas.values()
        if need > self.room.capacities[place]:
            self._refuse_all(replica, books.too_large(replica, self.room.capacities[place]), at_s)
            return True
        if need <= self.room.free_bytes(place):
            return True
        for victim in self.room.victims(place, need, everything):
            if not self._demote(victim, at_s):
                self._free(victim, at_s, "evicted for room", evicted=True)
        if self.room.is_coming(place, need, everything):
            return False
        self._refuse_impatient(replica, at_s)
        return replica.state is State.ABSENT

    def _refuse_impatient(self, replica: Replica, at_s: float) -> None:
        """Those with a deadline stay in the queue; the others get the numbers now."""
        error = self.room.refusal(replica, self.replicas.values())
        for waiter in list(replica.waiters.values()):
            if waiter.deadline_at_s is None:
                self.waiters.leave(waiter.ticket)
                self._refuse(waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

    def _refuse_all(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        for waiter in self.waiters.take(replica):
            self._refuse(waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

    def _demote(self, victim: Replica, at_s: float) -> bool:
        """A device's image goes to the host first if it is not there and fits beside what is: True if it does."""
        if victim.place.tier is not Tier.GPU or CPU not in self.room.capacities:
            return False
        if self.find(victim.key, CPU) is not None or victim.nbytes > self.room.free_bytes(CPU):
            return False
        host = self._enqueue(victim.key, CPU, at_s)
        host.nbytes = victim.nbytes
        self._start_fill(host, at_s)
        self._retire(victim, at_s, "evicted for room, demoted to cpu")
        return True

    # -- fills -----------------------------------------------------------------------------------------------------

    def _start_fill(self, replica: Replica, at_s: float) -> None:
        source = self.shelf.source_of(replica)
        if source is not None:
            source.borrowers.add((replica.place, replica.generation))
        replica.source = source.place if source else None
        self.promotions.forget(replica)  # it may have come to lie at another host place first
        self._queues[replica.place].remove(replica)
        self._step(replica, State.FILLING, at_s, f"room found, source {replica.source or 'artifact'}")
        self._out.fill(replica)

    def _current(self, event: Measured | Filled | FillFailed | Freed | ReplicaBroken) -> Replica | None:
        """The replica a completion speaks of, or None if the completion is stale."""
        replica = self.find(event.key, event.place)
        return replica if replica is not None and replica.generation == event.generation else None

    def _measured(self, event: Measured) -> None:
        replica = self._current(event)
        if replica is not None and replica.state is State.QUEUED:
            replica.nbytes, replica.measured = event.nbytes, True
            self._admit(event.place, event.at_s)

    def _filled(self, event: Filled) -> None:
        replica = self._current(event)
        if replica is None:
            return
        self._return_source(replica, event.at_s)
        replica.cost_s, replica.filled_at_s = event.cost_s, event.at_s
        self._step(replica, State.SEALED, event.at_s, "filled")
        self.room.used(replica)
        self._touch(replica, event.at_s)
        for waiter in self.waiters.take(replica):
            self._serve(replica, waiter, event.at_s, warm=False)
        self._admit_everywhere(event.at_s)

    def _fill_failed(self, event: FillFailed) -> None:
        replica = self._current(event)
        if replica is None:
            return
        self._return_source(replica, event.at_s)
        if replica.state is State.QUEUED:
            self._queues[replica.place].remove(replica)
        waiters = self.waiters.take(replica)
        self._remove(replica, event.at_s, f"failed: {event.error.code}")
        for waiter in waiters:
            self._refuse(waiter, event.error, event.at_s)
        self._admit_everywhere(event.at_s)

    def _return_source(self, replica: Replica, at_s: float) -> None:
        """End the internal lease. Whatever waited for the source to be free may go now."""
        source = self.find(replica.key, replica.source) if replica.source else None
        replica.source = None
        if source is not None:
            source.borrowers.discard((replica.place, replica.generation))
            self._touch(source, at_s)
            self._after_release(source, at_s)

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _lease_closed(self, event: Closed) -> None:
        lease = self.leases.by_number.get(event.lease)
        if lease is not None and lease.session == event.session:
            self._end_lease(lease, event.at_s)
            self._admit(lease.place, event.at_s)

    def _end_lease(self, lease: Lease, at_s: float) -> None:
        self.leases.end(lease)
        replica = self.replicas[lease.key, lease.place]
        replica.leases.discard(lease.number)
        self._touch(replica, at_s)
        self._after_release(replica, at_s)

    def _after_release(self, replica: Replica, at_s: float) -> None:
        if replica.held:
            return
        if replica.state is State.DRAINING:
            self._free(replica, at_s, "last lease closed", evicted=False)
        elif replica.state is State.SEALED and replica.keep_alive_s == 0 and self.room.evictable(replica):
            self._free(replica, at_s, "eager reclaim", evicted=False)

    def _session_ended(self, event: SessionEnded) -> None:
        leases = self.leases.of_session(event.session)
        for lease in leases:
            self._end_lease(lease, event.at_s)
        for ticket in self.waiters.of_session(event.session):
            self._waiter_left(WaiterLeft(at_s=event.at_s, ticket=ticket))
        for place in {lease.place for lease in leases}:
            self._admit(place, event.at_s)

    def _evict_requested(self, event: EvictRequested) -> None:
        replica = self.find(event.key, event.place)
        if replica is None or replica.state in (State.DRAINING, State.FREEING):
            return
        if replica.state is not State.SEALED or (replica.held and not event.drain):
            raise InUseError(books.why_in_use(replica))
        if (event.key, event.place) in self.room.pins:
            raise InUseError(f"the replica at {event.place} is pinned; unpin it first")
        self._retire(replica, event.at_s, "evicted on request")

    def _replica_broken(self, event: ReplicaBroken) -> None:
        replica = self._current(event)
        if replica is not None and replica.state is State.SEALED:
            self._retire(replica, event.at_s, f"broken: {event.reason}")

    def _retire(self, replica: Replica, at_s: float, why: str) -> None:
        if replica.held:
            self._step(replica, State.DRAINING, at_s, why)
            replica.keep_until_s = None
        else:
            self._free(replica, at_s, why, evicted=False)

    def _free(self, replica: Replica, at_s: float, why: str, *, evicted: bool) -> None:
        if replica.held:
            raise InternalError(
                f"{replica.key[:16]} at {replica.place} was to be freed under {books.why_in_use(replica)}"
            )
        self._step(replica, State.FREEING, at_s, why)
        replica.keep_until_s = None
        self.room.leaves(replica, evicted=evicted)
        self._out.free(replica, evicted=evicted)

    def _freed(self, event: Freed) -> None:
        replica = self._current(event)
        if replica is None:
            return
        parked = self.waiters.take(replica)
        self._remove(replica, event.at_s, "tier confirmed")
        if parked:
            again = self._enqueue(event.key, event.place, event.at_s)
            again.keep_alive_s = replica.keep_alive_s
            for waiter in parked:
                self.waiters.join(again, waiter)
        self._admit_everywhere(event.at_s)

    def _remove(self, replica: Replica, at_s: float, why: str) -> None:
        self._step(replica, State.ABSENT, at_s, why)
        self.promotions.forget(replica)
        self.shelf.remove(replica)

    # -- the rest --------------------------------------------------------------------------------------------------

    def _pin_changed(self, event: PinChanged) -> None:
        self.room.pin(event.key, event.place, pinned=event.pinned)
        replica = self.find(event.key, event.place)
        if replica is not None and replica.state is State.SEALED:
            self._touch(replica, event.at_s)
            self._after_release(replica, event.at_s)
        self._admit_everywhere(event.at_s)

    def _adopted(self, event: Adopted) -> None:
        if (event.key, event.place) in self.replicas or event.nbytes > self.room.free_bytes(event.place):
            raise InternalError(
                f"{event.key[:16]} at {event.place} cannot be adopted: it is there, or there is no room"
            )
        replica = self.shelf.add(event.key, event.place)
        replica.nbytes, replica.cost_s = event.nbytes, event.cost_s
        replica.keep_alive_s, replica.filled_at_s = event.keep_alive_s, event.at_s
        self._step(replica, State.SEALED, event.at_s, "adopted after a restart")
        self.room.used(replica)
        self._touch(replica, event.at_s)

    def _drain_requested(self, event: DrainRequested) -> None:  # noqa: ARG002 - all handlers take their event
        self.draining = True

    def _tick(self, event: Tick) -> None:
        for replica in list(self.replicas.values()):
            for waiter in list(replica.waiters.values()):
                if waiter.deadline_at_s is not None and waiter.deadline_at_s <= event.at_s:
                    self._expire(replica, waiter, event.at_s)
            if replica.keep_until_s is not None and replica.keep_until_s <= event.at_s:
                replica.keep_until_s = None  # if it cannot go now, the end of what holds it sets a new time
                if self.room.evictable(replica):
                    self._free(replica, event.at_s, "keep-alive over", evicted=False)

    def _expire(self, replica: Replica, waiter: Waiter, at_s: float) -> None:
        self.waiters.leave(waiter.ticket)
        if replica.state is State.QUEUED and replica.nbytes > self.room.free_bytes(replica.place):
            self._refuse(waiter, self.room.refusal(replica, self.replicas.values()), at_s)
        else:
            self._refuse(waiter, DeadlineError(books.why_late(replica)), at_s)
        self._drop_if_unwanted(replica, at_s)

    def _admit_everywhere(self, at_s: float) -> None:
        for place in self._queues:
            self._admit(place, at_s)

    def _touch(self, replica: Replica, at_s: float) -> None:
        replica.last_used_s = at_s
        lazy = replica.keep_alive_s is None or (replica.key, replica.place) in self.room.pins
        replica.keep_until_s = None if replica.held or lazy else at_s + (replica.keep_alive_s or 0.0)

    def _step(self, replica: Replica, to: State, at_s: float, why: str) -> None:
        old = replica.state
        replica.step(to, at_s, why)
        self.room.moved(replica, old)
        if to not in LEASABLE and replica.leases:
            raise InternalError(f"{replica.key[:16]} at {replica.place} went to {to.value} with leases")
        self._out.changed(replica, old, at_s, why)
