"""Residency: which image is where, who reads it, who waits, and what must go. A pure state machine.

`handle(event)` changes the books and returns instructions; it does no input or output, reads no clock and never blocks.
The books and the steps that change them are the `Ledger`'s, the way from a request to a fill is `Admission`'s; here is
what follows from every event. Not covered: how bytes move (the store's runner) and what a model's name means (the
catalog). The caller serialises calls.

Rules kept, each checked by `validate`:
capacity is never exceeded; a replica with a lease or a running copy is never freed; a fill reads only from a sealed
replica it has borrowed; one fill per image and place; room is given in order of arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core import books
from trims.core.admission import Admission
from trims.core.errors import DrainingError, InternalError, InUseError
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
    PlaceLost,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
    WorkingKnown,
)
from trims.core.ledger import Ledger
from trims.core.outbox import Outbox
from trims.core.place import Tier
from trims.core.replica import LEASABLE, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from trims.core.place import Place
    from trims.core.policy import Policy
    from trims.core.replica import Replica

#: So long at a time an image outlives its keep-alive on the host while a device that wants it has no room yet.
PROMISED_S = 1.0


class Residency:
    """The books of one daemon.

    Args:
        capacities: Bytes each place may hold; a place that is not listed does not exist.
        policies: One policy instance for each place.
        reserves: Bytes left free at a place beside its capacity, for the work of those who read there.
        units: Bytes in which a place gives memory.
        peers: Devices that copy from each other directly, as (target, source).
    """

    def __init__(
        self,
        capacities: Mapping[Place, int],
        policies: Mapping[Place, Policy],
        *,
        reserves: Mapping[Place, int] | None = None,
        units: Mapping[Place, int] | None = None,
        peers: Collection[tuple[Place, Place]] = (),
    ) -> None:
        self._ledger = Ledger(capacities, policies, reserves or {}, units or {}, peers)
        self._admission = Admission(self._ledger)
        self.room = self._ledger.room
        self.shelf = self._ledger.shelf
        self.leases = self._ledger.leases
        self.waiters = self._ledger.waiters
        self.promotions = self._ledger.promotions
        self.draining = False
        self._handlers: dict[type[Event], Callable[..., None]] = {
            Requested: self._requested,
            Closed: self._lease_closed,
            SessionEnded: self._session_ended,
            WaiterLeft: lambda event: self._admission.leave(event.ticket, event.at_s),
            Measured: self._measured,
            Filled: self._filled,
            FillFailed: self._fill_failed,
            Freed: self._freed,
            EvictRequested: self._evict_requested,
            ReplicaBroken: self._replica_broken,
            PlaceLost: self._place_lost,
            WorkingKnown: self._working_known,
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
        self._ledger.outbox = Outbox()
        self._handlers[type(event)](event)
        self._admission.settle(event.at_s)
        return self._ledger.outbox.instructions

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
        books.validate(self, self._admission.queues)

    # -- requests --------------------------------------------------------------------------------------------------

    def _requested(self, event: Requested) -> None:
        if self.draining and event.waiter.session is not None:
            refusal = DrainingError("the daemon is draining and takes no new opens")
            self._admission.refuse(event.waiter, refusal, event.at_s)
        else:
            self._admission.request(event)

    def _drain_requested(self, event: DrainRequested) -> None:  # noqa: ARG002 - all handlers take their event
        self.draining = True

    # -- fills -----------------------------------------------------------------------------------------------------

    def _current(self, event: Measured | Filled | FillFailed | Freed | ReplicaBroken) -> Replica | None:
        """The replica a completion speaks of, or None if the completion is stale."""
        replica = self.find(event.key, event.place)
        return replica if replica is not None and replica.generation == event.generation else None

    def _measured(self, event: Measured) -> None:
        replica = self._current(event)
        if replica is not None and replica.state is State.QUEUED:
            replica.nbytes, replica.measured = event.nbytes, True
            self._admission.look_again(event.place)

    def _filled(self, event: Filled) -> None:
        replica = self._current(event)
        if replica is None:
            return
        self._admission.look_everywhere()
        self._ledger.return_source(replica, event.at_s)
        replica.cost_s = event.cost_s
        if replica.doomed:  # who waits for it is parked, and it is filled again once its memory is given back
            self._ledger.step(replica, State.SEALED, event.at_s, "filled, and lost with its place")
            self._ledger.retire(replica, event.at_s, "its place was lost while it was filled")
            return
        self._ledger.seal(replica, event.at_s, "filled")
        for waiter in self._ledger.take(replica):
            self._admission.serve(replica, waiter, event.at_s, warm=False)

    def _fill_failed(self, event: FillFailed) -> None:
        replica = self._current(event)
        if replica is None:
            return
        self._admission.look_everywhere()
        self._ledger.return_source(replica, event.at_s)
        if replica.state is State.QUEUED:
            self._admission.queues[replica.place].remove(replica)
        waiters = self._ledger.take(replica)
        self._ledger.remove(replica, event.at_s, f"failed: {event.error.code}")
        for waiter in waiters:
            self._admission.refuse(waiter, event.error, event.at_s)

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _lease_closed(self, event: Closed) -> None:
        lease = self.leases.by_number.get(event.lease)
        if lease is not None and lease.session == event.session:
            self._ledger.end_lease(lease, event.at_s)
            self._admission.look_again(lease.place)

    def _session_ended(self, event: SessionEnded) -> None:
        for lease in self.leases.of_session(event.session):
            self._ledger.end_lease(lease, event.at_s)
            self._admission.look_again(lease.place)
        for ticket in self.waiters.of_session(event.session):
            self._admission.leave(ticket, event.at_s)

    def _evict_requested(self, event: EvictRequested) -> None:
        replica = self.find(event.key, event.place)
        if replica is None or replica.state in (State.DRAINING, State.FREEING):
            return
        if replica.state is not State.SEALED or (replica.held and not event.drain):
            raise InUseError(books.why_in_use(replica))
        if (event.key, event.place) in self.room.pins:
            raise InUseError(f"the replica at {event.place} is pinned; unpin it first")
        self._ledger.retire(replica, event.at_s, "evicted on request")

    def _replica_broken(self, event: ReplicaBroken) -> None:
        replica = self._current(event)
        if replica is not None and replica.state is State.SEALED:
            self._ledger.retire(replica, event.at_s, f"broken: {event.reason}")

    def _place_lost(self, event: PlaceLost) -> None:
        """What is being filled or freed there ends by its own report, even if that is a good one."""
        for replica in [each for each in self.replicas.values() if each.place == event.place]:
            if replica.state in LEASABLE:
                self._ledger.lose(replica, event.at_s, event.reason)
            elif replica.state is State.FILLING:
                replica.doomed = True
        self._admission.look_again(event.place)

    def _freed(self, event: Freed) -> None:
        replica = self._current(event)
        if replica is None:
            return
        self._admission.look_everywhere()
        parked = self._ledger.take(replica)
        self._ledger.remove(replica, event.at_s, "tier confirmed")
        if parked:
            again = self._admission.enqueue(event.key, event.place, event.at_s)
            again.keep_alive_s = replica.keep_alive_s
            self._admission.expect_work(again, replica.working_bytes)
            for waiter in parked:
                self._ledger.join(again, waiter)

    # -- the rest --------------------------------------------------------------------------------------------------

    def _pin_changed(self, event: PinChanged) -> None:
        self.room.pin(event.key, event.place, pinned=event.pinned)
        replica = self.find(event.key, event.place)
        if replica is not None and replica.state is State.SEALED:
            self._ledger.touch(replica, event.at_s)
            self._ledger.release(replica, event.at_s)
        self._admission.look_again(event.place)

    def _adopted(self, event: Adopted) -> None:
        if (event.key, event.place) in self.replicas or self._too_much(event):
            raise InternalError(
                f"{event.key[:16]} at {event.place} cannot be adopted: it is there, or there is no room"
            )
        replica = self.shelf.add(event.key, event.place)
        replica.nbytes, replica.cost_s = event.nbytes, event.cost_s
        replica.keep_alive_s = event.keep_alive_s
        self._ledger.seal(replica, event.at_s, "adopted after a restart")

    def _working_known(self, event: WorkingKnown) -> None:
        for replica in self.places_of(event.key):
            if replica.place.tier is Tier.GPU:
                self._admission.expect_work(replica, event.nbytes)

    def _too_much(self, event: Adopted) -> bool:
        return self.room.takes(event.place, event.nbytes) > self.room.free_bytes(event.place)

    def _tick(self, event: Tick) -> None:
        for replica in list(self.replicas.values()):
            for waiter in list(replica.waiters.values()):
                if waiter.deadline_at_s is not None and waiter.deadline_at_s <= event.at_s:
                    self._admission.expire(replica, waiter, event.at_s)
            if replica.keep_until_s is not None and replica.keep_until_s <= event.at_s:
                replica.keep_until_s = None  # if it cannot go now, the end of what holds it sets a new time
                if self.shelf.is_promised(replica):
                    replica.keep_until_s = event.at_s + PROMISED_S
                elif self.room.evictable(replica):
                    self._ledger.free(replica, event.at_s, "keep-alive over", evicted=False)
