"""Residency: which image is where, its readers and waiters, and what must go. A pure state machine.

`handle(event)` changes the books and returns instructions; it does no input or output, reads no clock and never blocks.
The books and the steps that change them are the `Ledger`'s, the way from a request to a fill is `Admission`'s; here is
what follows from every event. Not covered: how bytes move (the store's runner) and what a model's name means (the
catalog). The caller serialises calls.

A completion may come late, twice, out of order or never: it counts only for the incarnation and in the state it belongs
to. Rules kept, each checked by `validate`: capacity is never exceeded; a replica with a lease or a running copy is
never freed; a fill reads only from a sealed replica it has borrowed; one fill per image and place.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trims.core.errors import InternalError, InUseError, NoSpaceError
from trims.core.place import TierKind
from trims.core.policy import capacity_errors
from trims.core.replica import LEASABLE, ReplicaId, State
from trims.core.residency import fitting, invariants, placement
from trims.core.residency.admission import Admission
from trims.core.residency.events import (
    Adopted,
    Closed,
    DrainRequested,
    Event,
    EvictRequested,
    Filled,
    FillFailed,
    Freed,
    Instruction,
    ManifestChanged,
    Measured,
    MeasureFailed,
    MemoryShort,
    PinChanged,
    PlaceLost,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
    WorkspaceKnown,
)
from trims.core.residency.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from trims.core.errors import TrimsError
    from trims.core.lease import Waiter
    from trims.core.place import Place
    from trims.core.policy.eviction import Policy
    from trims.core.policy.quotas import Quota
    from trims.core.replica import Replica
    from trims.core.residency.fill_failures import Failure
    from trims.core.residency.placement import Verdict

_About = Measured | MeasureFailed | Filled | FillFailed | Freed | ReplicaBroken
#: Seconds by which keep-alive on the host is extended, again and again, while a device waits for room for the image.
PROMISED_S = 1.0


class Residency:
    """The books of one daemon.

    Args:
        capacities: Bytes each place may hold; a place that is not listed does not exist.
        policies: One policy instance for each place.
        reserves: Bytes left free at a place beside its capacity, for the work of sessions that read there.
        units: Bytes in which a place gives memory.
        peers: Devices that copy from each other directly, as (target, source).
        first_lease: Number of the first lease; another one in each daemon's life.
        max_images: Images to hold at most; what is read or pinned stays beyond that.
        quotas: What each tenant may hold, by its name.
    """

    def __init__(
        self,
        capacities: Mapping[Place, int],
        policies: Mapping[Place, Policy],
        *,
        reserves: Mapping[Place, int] | None = None,
        units: Mapping[Place, int] | None = None,
        peers: Collection[tuple[Place, Place]] = (),
        first_lease: int = 1,
        max_images: int = sys.maxsize,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        self._ledger = Ledger(
            capacities,
            policies,
            reserves or {},
            units or {},
            peers,
            first_lease=first_lease,
            max_images=max_images,
            quotas=quotas,
        )
        self._admission = Admission(self._ledger)
        self.capacity = self._ledger.capacity
        self.table = self._ledger.table
        self.leases = self._ledger.leases
        self.waiters = self._ledger.waiters
        self.promotions = self._ledger.promotions
        self.demand = self._ledger.demand
        self.tenancy = self._ledger.tenancy
        self.draining = False
        self._handlers = self._handlers_by_event()

    def _handlers_by_event(self) -> dict[type[Event], Callable[..., None]]:
        return {
            Requested: self._admission.request,
            Closed: self._lease_closed,
            SessionEnded: self._session_ended,
            WaiterLeft: lambda event: self._admission.leave(event.ticket, event.at_s),
            Measured: self._measured,
            MeasureFailed: self._measure_failed,
            Filled: self._filled,
            FillFailed: self._fill_failed,
            Freed: self._freed,
            EvictRequested: self._evict_requested,
            ReplicaBroken: self._replica_broken,
            PlaceLost: self._place_lost,
            MemoryShort: self._admission.room.give_way,
            WorkspaceKnown: self._workspace_known,
            ManifestChanged: lambda event: self._ledger.failures.forget(event.key),
            PinChanged: self._pin_changed,
            Adopted: self._adopted,
            DrainRequested: self._drain_requested,
            Tick: self._tick,
        }

    # -- the door and questions ------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event in. Return what the store must do, in order.

        Raises:
            InUseError: An eviction without `drain` met a lease, a copy or a fill; nothing changed.
            InvalidTransitionError: A bug; the message has the replica's history.
        """
        ledger, room = self._ledger, self._admission.room
        instructions = ledger.instructions.written = []
        self._handlers[type(event)](event)
        # A grant of what is read leaves nothing to decide.
        if ledger.changed_keys or ledger.changed_places or room.fresh:
            room.settle(event.at_s)
        return instructions

    @property
    def replicas(self) -> Mapping[tuple[str, Place], Replica]:
        """Return all replicas, by image key and place."""
        return self.table.replicas

    def find(self, key: str, place: Place) -> Replica | None:
        """Return the replica, in whatever state, or None."""
        return self.table.find(key, place)

    def places_of(self, key: str) -> list[Replica]:
        """Return all replicas of an image, fastest place first."""
        return self.table.places_of(key)

    def in_memory(self, key: str, in_place: str | None = None) -> Verdict:
        """Return whether an image is, or should be, in shared memory (see `placement.verdict`)."""
        return placement.verdict(self._ledger, key, in_place)

    def never_fits(self, nbytes: int, place: Place | None, waiter: Waiter) -> TrimsError | None:
        """Return why an image of at least `nbytes` can never serve the waiter at a place (see `fitting`)."""
        return fitting.never_fits(self._ledger, nbytes, place, waiter)

    def failure_of(self, key: str) -> Failure | None:
        """Return why the last attempt to make an image behind its readers failed; None if none did."""
        return self._ledger.failures.of(key)

    def next_due_s(self) -> float | None:
        """Clock time at which the next deadline or keep-alive is due, or None."""
        return self._ledger.due.next_s()

    def validate(self) -> None:
        """Check every invariant from scratch. Raises InvariantError naming the first that is broken."""
        invariants.validate(self._ledger, self._admission.room)

    def checks(self) -> Iterator[Callable[[], None]]:
        """Return the same checks as `validate` in short pieces, so that requests are served in between.

        Each raises InvariantError.
        """
        return invariants.pieces(self._ledger, self._admission.room)

    # -- fills -----------------------------------------------------------------------------------------------------

    def _current(self, event: _About, state: State) -> Replica | None:
        """Return the replica a report speaks of; None if the report is stale: another incarnation, or another state.

        A report that comes twice finds the replica in another state, one that comes late another incarnation.
        """
        replica = self.find(event.key, event.place)
        current = replica is not None and replica.generation == event.generation and replica.state is state
        return replica if current else None

    def _measured(self, event: Measured) -> None:
        replica = self._current(event, State.QUEUED)
        if replica is not None and replica.measuring == event.measurement:
            replica.measuring = 0
            if self.table.source_of(replica) is None:  # else the size is known, and the copy is the same bytes
                replica.nbytes, replica.measured = event.nbytes, True
                replica.descriptors = event.descriptors
            self._ledger.changed_keys[event.key] = None

    def _measure_failed(self, event: MeasureFailed) -> None:
        """Refuse a replica whose artifact cannot be converted, unless its image has come to lie somewhere meanwhile."""
        replica = self._current(event, State.QUEUED)
        if replica is None or replica.measuring != event.measurement:
            return
        replica.measuring = 0
        if self.table.source_of(replica) is None:
            self._admission.refuse_all(replica, event.error, event.at_s)

    def _filled(self, event: Filled) -> None:
        replica = self._current(event, State.FILLING)
        if replica is None:
            return
        self._ledger.return_source(replica, event.at_s)
        self._ledger.failures.forget(event.key)
        replica.cost_s = event.cost_s
        if replica.place_lost:  # its waiters are parked, and it is filled again once its memory is given back
            self._ledger.step(replica, State.SEALED, event.at_s, "filled, and lost with its place")
            self._ledger.retire(replica, event.at_s, "its place was lost while it was filled")
            return
        self._ledger.seal(replica, event.at_s, "filled")
        for waiter in self._ledger.take(replica):
            self._admission.serve(replica, waiter, event.at_s, warm=False)
        if not replica.held and replica.state is State.SEALED:  # quotas of tenants may have refused all of them
            self._ledger.touch(replica, event.at_s)

    def _fill_failed(self, event: FillFailed) -> None:
        replica = self._current(event, State.FILLING)
        if replica is None:
            return
        self._ledger.return_source(replica, event.at_s)
        waiters = self._ledger.take(replica)
        self._ledger.remove(replica, event.at_s, f"failed: {event.error.code}")
        error = event.error
        if isinstance(error, NoSpaceError):
            if self._admission.make_room_again(replica, waiters, error, event.at_s):
                return
            error = capacity_errors.without_room(self.capacity.at[replica.place], replica, error)
        for waiter in waiters:
            self._admission.turn_away(replica, waiter, error, event.at_s)

    # -- leaving ---------------------------------------------------------------------------------------------------

    def _lease_closed(self, event: Closed) -> None:
        lease = self.leases.by_number.get(event.lease)
        if lease is not None and lease.session == event.session:
            self._ledger.end_lease(lease, event.at_s)

    def _session_ended(self, event: SessionEnded) -> None:
        for lease in self.leases.of_session(event.session):
            self._ledger.end_lease(lease, event.at_s)
        for ticket in self.waiters.of_session(event.session):
            self._admission.leave(ticket, event.at_s)

    def _evict_requested(self, event: EvictRequested) -> None:
        replica = self.find(event.key, event.place)
        if replica is None or replica.state in (State.DRAINING, State.FREEING):
            return
        if replica.state is not State.SEALED or (replica.held and not event.drain):
            raise InUseError(capacity_errors.why_in_use(replica))
        if (event.key, event.place) in self.capacity.pins:
            raise InUseError(f"the replica at {event.place} is pinned; unpin it first")
        self._ledger.retire(replica, event.at_s, "evicted on request")

    def _replica_broken(self, event: ReplicaBroken) -> None:
        replica = self._current(event, State.SEALED)
        if replica is not None:
            self._ledger.retire(replica, event.at_s, f"broken: {event.reason}")

    def _place_lost(self, event: PlaceLost) -> None:
        """Fills and frees that run there end by their own report; a fill that succeeds is retired at once."""
        for replica in list(self.table.by_place.get(event.place, {}).values()):
            if replica.state in LEASABLE:
                self._ledger.lose(replica, event.at_s, event.reason)
            elif replica.state is State.FILLING:
                replica.place_lost = True

    def _freed(self, event: Freed) -> None:
        replica = self._current(event, State.FREEING)
        if replica is None:
            return
        parked = self._ledger.take(replica)
        self._ledger.remove(replica, event.at_s, "tier confirmed")
        if parked:
            self._admission.enqueue_again(replica, parked, event.at_s)

    # -- the rest --------------------------------------------------------------------------------------------------

    def _drain_requested(self, event: DrainRequested) -> None:  # noqa: ARG002 - all handlers take their event
        self.draining = True
        self._handlers[Requested] = self._requested_while_draining

    def _requested_while_draining(self, event: Requested) -> None:
        """Refuse a request, unless the store asks for its own sake."""
        if event.waiter.internal:
            self._admission.request(event)
        else:
            self._admission.refuse(event.waiter, capacity_errors.draining(), event.at_s)

    def _pin_changed(self, event: PinChanged) -> None:
        if event.place not in self.capacity:
            raise capacity_errors.no_such_place(event.place, self.capacity.at)
        self.capacity.pin(event.key, event.place, pinned=event.pinned)
        replica = self.find(event.key, event.place)
        if replica is not None and replica.state is State.SEALED:
            self._ledger.touch(replica, event.at_s)
            self._ledger.release(replica, event.at_s)

    def _adopted(self, event: Adopted) -> None:
        if (event.key, event.place) in self.replicas or self._too_much(event):
            raise InternalError(
                f"{event.key[:16]} at {event.place} cannot be adopted: it is there, or there is no room"
            )
        replica = self.table.add(event.key, event.place)
        replica.nbytes, replica.cost_s, replica.descriptors = event.nbytes, event.cost_s, event.descriptors
        replica.keep_alive_s = event.keep_alive_s
        if event.verified:
            self._ledger.seal(replica, event.at_s, event.why)
        else:
            self._ledger.step(replica, State.FILLING, event.at_s, "found after a restart, being verified")
            self._ledger.unawaited.begin(replica, ())

    def _workspace_known(self, event: WorkspaceKnown) -> None:
        for replica in self.places_of(event.key):
            if replica.place.tier is TierKind.GPU:
                self._admission.expect_work(replica, event.nbytes)

    def _too_much(self, event: Adopted) -> bool:
        books = self.capacity.at[event.place]
        return books.takes(event.nbytes) > min(books.free_bytes, books.coming_bytes)

    # -- time ------------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> None:
        while (due := self._ledger.due.pop_due(event.at_s)) is not None:
            if isinstance(due, int):
                self._admission.expire(due, event.at_s)
            elif isinstance(due, ReplicaId):
                self._keep_alive_ends(self.table.replicas[due.key, due.place], event.at_s)
            else:
                self.capacity.at[due].forget_full(event.at_s)
                self._ledger.changed_places[due] = None

    def _keep_alive_ends(self, replica: Replica, at_s: float) -> None:
        until_s, replica.alarm_s = replica.keep_until_s, None
        if until_s is None:
            return
        if until_s > at_s:
            self._ledger.keep_until(replica, until_s)
        elif self.table.is_promised(replica):
            self._ledger.keep_until(replica, at_s + PROMISED_S)
        else:
            replica.keep_until_s = None  # if it cannot go now, the end of what holds it sets a new time
            if self._ledger.evictable(replica):
                self._ledger.free(replica, at_s, "keep-alive over", evicted=False)
