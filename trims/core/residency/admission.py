"""Admission: from a request to a queued replica, and from there to an answer. Which waiter is served, where and when.

Not covered: which queued replica gets room (`Room`), and what happens once a fill runs (`Residency`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from trims.core.errors import (
    CapacityError,
    DeadlineError,
    InUseError,
    LostPeerError,
    QuotaError,
    TooLargeError,
    TrimsError,
)
from trims.core.place import ANY_GPU, CPU, DISK, FILE, TierKind
from trims.core.policy import capacity_errors
from trims.core.policy.demand import COUNTED_AT_ONCE
from trims.core.replica import Share, State
from trims.core.residency import placement
from trims.core.residency.events import KeepAlive, Requested
from trims.core.residency.fill_failures import RETRY_EARNED_S
from trims.core.residency.promotion import host_for
from trims.core.residency.room import BELIEVED_FULL_S, Room

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.core.errors import NoSpaceError
    from trims.core.lease import Waiter
    from trims.core.place import Place
    from trims.core.replica import Replica
    from trims.core.residency.ledger import Ledger

#: Keep-alive of the artifact's own files without a reader: opening them again takes milliseconds.
IN_PLACE_STAYS = KeepAlive(60.0)
#: Keep-alive is about memory: what an open finds on disk stays until the disk tier needs the room.
STAYS = KeepAlive(None)
#: Fills for the same waiters that may find the machine without room; after the last one, they are refused.
_FILLS_WITHOUT_ROOM = 3


class Admission:
    """Waiters, and the queued replicas that they wait for; the `room` at all places has the queues."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._measurements = itertools.count(1)
        self.room = Room(ledger, self)

    # -- waiters ---------------------------------------------------------------------------------------------------

    def request(self, event: Requested, *, again: bool = False) -> None:
        """Serve a waiter, or let it wait, at the place that the request names, else at one that is chosen here.

        Args:
            again: Whether the same waiter was here before, for another place.
        """
        ledger, waiter, place = self._ledger, event.waiter, event.place
        if waiter.wants_lease and not again:
            ledger.demand.uncounted.append(event.key)
            if len(ledger.demand.uncounted) >= COUNTED_AT_ONCE:
                ledger.demand.count()
        replica = ledger.table.replicas.get((event.key, place))
        sealed = replica is not None and replica.state is State.SEALED
        if event.anywhere and not sealed:
            self._request_anywhere(event)
            return
        if place not in ledger.capacity.at:
            self._request_device(event)
            return
        if waiter.tenant is not None and self._is_over_quota(event, replica):
            return
        replica = replica or self.enqueue(event.key, place, event.at_s)
        replica.mappable = replica.mappable or event.in_place is not None
        if event.keep is not None:
            replica.keep_alive_s = event.keep.seconds
        if event.workspace_bytes is not None:
            self.expect_work(replica, event.workspace_bytes)
        if sealed and waiter.wants_lease and waiter.session is not None:
            ledger.grant(replica, waiter, waiter.session, event.at_s, warm=True)
        elif sealed:
            self.serve(replica, waiter, event.at_s, warm=True)
        else:
            ledger.join(replica, replace(waiter, modest=True) if event.modest else waiter)
            self._waiter_joined(replica, event.at_s)

    def _request_device(self, event: Requested) -> None:
        """Choose the device for a request that wants any; refuse a place that is not here."""
        ledger, waiter, place = self._ledger, event.waiter, event.place
        if place is not ANY_GPU:
            self.refuse(waiter, capacity_errors.no_such_place(place, ledger.capacity.at), event.at_s)
            return
        first, *others = placement.devices(ledger, event.key, event.workspace_bytes or 0, waiter.avoids)
        self.request(replace(event, place=first, waiter=replace(waiter, others=tuple(others))), again=True)

    def _is_over_quota(self, event: Requested, replica: Replica | None) -> bool:
        """Return whether a tenant may not have this lease. Then serve it from files if possible, else refuse it."""
        waiter = event.waiter
        if not waiter.wants_lease or waiter.tenant is None:
            return False
        refusal = self._ledger.tenancy.refusal(waiter.tenant, replica)
        if refusal is None:
            return False
        elsewhere = replace(event, anywhere=False, modest=False, in_place=None)
        if replica is not None and event.anywhere and placement.is_sealed(self._ledger, event.key, DISK):
            self.request(replace(elsewhere, place=DISK, keep=STAYS), again=True)
        elif replica is not None and event.in_place is not None:
            self.request(replace(elsewhere, key=event.in_place, place=FILE, keep=IN_PLACE_STAYS), again=True)
        else:
            self.refuse(waiter, refusal, event.at_s)
        return True

    def _request_anywhere(self, event: Requested) -> None:
        """Choose where on the host to serve an image that is not sealed at the event's place."""
        ledger = self._ledger
        place = placement.best_place(ledger, event.key, kept=event.modest)
        own = None if event.in_place is None else ledger.table.find(event.in_place, FILE)
        leaves = own is not None and own.state is State.DRAINING
        if leaves and own is not None and event.key == event.in_place:
            self.refuse(event.waiter, capacity_errors.leaving(own), event.at_s)  # its image is known once it was read
            return
        if event.in_place is not None and not leaves and not placement.is_sealed(ledger, event.key, place):
            place, keep = FILE, IN_PLACE_STAYS
            there = replace(event, key=event.in_place, place=FILE, anywhere=False, modest=False, keep=keep)
        elif place is event.place:
            there = replace(event, anywhere=False)
        else:
            there = replace(event, place=place, anywhere=False, keep=STAYS)
        self.request(there, again=True)
        if place is DISK or place is FILE:
            self._promote_if_earned(event)

    def _promote_if_earned(self, event: Requested) -> None:
        """Copy an image that is read from disk into shared memory behind its readers, if its use has earned that."""
        ledger, at_s = self._ledger, event.at_s
        keep_alive_s = event.keep.seconds if event.keep is not None else None
        if keep_alive_s == 0 or not ledger.promotions.may_earn(at_s):
            return
        earned = placement.may_be_tried(ledger, event.key, event.in_place, at_s)
        tenant = event.waiter.tenant
        if earned and not self.room.is_busy(CPU) and placement.may_pay(ledger, tenant, event.key):
            replica = self.enqueue(event.key, CPU, at_s)
            replica.keep_alive_s, replica.mappable = keep_alive_s, event.in_place is not None
            ledger.join(replica, ledger.promotions.begin_earned(replica, tenant))

    def enqueue(self, key: str, place: Place, at_s: float) -> Replica:
        """Create a replica in the queue of its place."""
        replica = self._ledger.table.add(key, place)
        self._ledger.step(replica, State.QUEUED, at_s, "first waiter")
        self._ledger.changed_keys[key] = None
        return replica

    def enqueue_again(self, replica: Replica, waiters: Iterable[Waiter], at_s: float) -> Replica:
        """Let the waiters of a replica that has left the books wait for its next incarnation; returns that."""
        again = self.enqueue(replica.key, replica.place, at_s)
        again.keep_alive_s, again.mappable = replica.keep_alive_s, replica.mappable
        self.expect_work(again, replica.workspace_bytes)
        for waiter in waiters:
            self._ledger.join(again, waiter)
        return again

    def make_room_again(self, replica: Replica, waiters: list[Waiter], error: NoSpaceError, at_s: float) -> bool:
        """Evict after a fill failed because the machine had less room than the ledger. Return whether that can help.

        1. The capacity counts as what lies there and what the tier says is left, for `BELIEVED_FULL_S` seconds.
        2. The waiters wait for room once more. By the new capacity, idle replicas have to go for it.
        3. What has come back since the fill began counts as left: the tier's figure may be older.
        4. If the tier does not say what is left, or the machine still has no room after that, as many bytes are
           evicted as the image takes, or all that may be. After `_FILLS_WITHOUT_ROOM` failed fills the requests are
           refused: something else takes the room that comes free.
        """
        ledger, books = self._ledger, self._ledger.capacity.at[replica.place]
        fills, need = replica.fills_without_room + 1, books.takes(replica.nbytes)
        coming = books.evictable_bytes(spare_promised=False) + books.shares[Share.LEAVING]
        returned = books.returned_bytes - replica.returned_before
        left = (need - coming if error.room_bytes is None or fills > 1 else error.room_bytes) + returned
        if not returned or left < need:
            books.found_full(min(left, need - 1), at_s + BELIEVED_FULL_S)
            ledger.due.add(at_s + BELIEVED_FULL_S, replica.place)
            ledger.changed_places[replica.place] = None
        waits = coming or returned or any(not waiter.is_impatient for waiter in waiters)
        if not waiters or not waits or fills >= _FILLS_WITHOUT_ROOM or replica.place_lost:
            return False
        self.enqueue_again(replica, waiters, at_s).fills_without_room = fills
        return True

    def expect_work(self, replica: Replica, nbytes: int) -> None:
        """Record that each session that reads the replica needs `nbytes` on the device: activations, libraries' own."""
        if replica.place.tier is TierKind.GPU and nbytes != replica.workspace_bytes:
            self._ledger.expect_work(replica, nbytes)

    def serve(self, replica: Replica, waiter: Waiter, at_s: float, *, warm: bool) -> None:
        """Grant the waiter its lease, or answer that the replica is there."""
        ledger = self._ledger
        if waiter.wants_lease and waiter.session is not None:
            refusal = None if waiter.tenant is None else ledger.tenancy.refusal(waiter.tenant, replica)
            if refusal is None:
                ledger.grant(replica, waiter, waiter.session, at_s, warm=warm)
            else:
                self.turn_away(replica, waiter, refusal, at_s)
            return
        ledger.touch(replica, at_s)
        if ledger.promotions.end(waiter.ticket) is None and not waiter.is_promotion:
            ledger.instructions.ready(waiter, replica)

    def turn_away(self, replica: Replica, waiter: Waiter, error: TrimsError, at_s: float) -> None:
        """Serve a waiter elsewhere if it may be, or answer it with the error: this replica cannot serve it.

        A waiter for any device goes to the next one. A modest waiter:

        1. A modest waiter finds no room in shared memory: it is served on disk.
        2. There is no room on disk either: it insists on memory, and waits as any other.
        """
        if waiter.others is not None and _is_of_a_device(error):
            self._try_next_device(replica, waiter, waiter.others, error, at_s)
            return
        if not waiter.modest or waiter.is_promotion or not isinstance(error, (CapacityError, InUseError)):
            self._note_failure(replica, waiter, error, at_s)
            self.refuse(waiter, error, at_s)
            return
        to_disk = replica.place is CPU and DISK in self._ledger.capacity.at
        modest = to_disk and not isinstance(error, TooLargeError)
        place, waiter = DISK if to_disk else CPU, replace(waiter, modest=False)
        event = Requested(at_s=at_s, key=replica.key, place=place, waiter=waiter, modest=modest)
        self.request(event, again=True)

    def _try_next_device(
        self, replica: Replica, waiter: Waiter, others: tuple[Place, ...], error: TrimsError, at_s: float
    ) -> None:
        """Have the next device serve a waiter. After the last one, its answer has the numbers of all."""
        if not others:
            known = self._ledger.capacity.at.items()
            devices = {place: books for place, books in known if place.tier is TierKind.GPU}
            self.refuse(waiter, capacity_errors.on_no_device(error, replica, devices), at_s)
            return
        waiter = replace(waiter, others=others[1:])
        keep, needed = KeepAlive(replica.keep_alive_s), replica.workspace_bytes
        event = Requested(at_s=at_s, key=replica.key, place=others[0], waiter=waiter, keep=keep, workspace_bytes=needed)
        self.request(event, again=True)

    def _note_failure(self, replica: Replica, waiter: Waiter, error: TrimsError, at_s: float) -> None:
        """Remember why an image that has earned a place in memory cannot be brought there, and have news logged."""
        ledger = self._ledger
        if waiter.ticket not in ledger.promotions.earned or isinstance(error, QuotaError):
            return
        noted = ledger.failures.note(replica.key, error, at_s)
        if noted is not None and noted.is_news:
            ledger.instructions.failed(replica, error, noted.not_before_s - at_s)

    def refuse(self, waiter: Waiter, error: TrimsError, at_s: float) -> None:
        """Answer a waiter with an error. For a promotion, the waiters at its device get the error."""
        ledger = self._ledger
        if not isinstance(error, QuotaError):  # one tenant's quota holds back no other tenant
            ledger.promotions.end_earned(waiter.ticket, at_s + RETRY_EARNED_S)
        promotion = ledger.promotions.end(waiter.ticket)
        if promotion is None:
            if not waiter.is_promotion:
                ledger.instructions.refuse(waiter, error)
            return
        replica, host = promotion
        another = host_for(ledger.capacity.at, after=host) if isinstance(error, TooLargeError) else None
        if another is None:
            self.refuse_all(replica, error, at_s)
        else:
            self._bring_to(another, replica, at_s)

    def leave(self, ticket: int, at_s: float) -> None:
        """Remove a waiter that gave up."""
        replica = self._ledger.leave(ticket)
        if replica is not None:
            self.drop_if_unwanted(replica, at_s)

    def expire(self, ticket: int, at_s: float) -> None:
        """Refuse a waiter whose deadline has passed, with an error that says what took so long."""
        ledger = self._ledger
        replica = ledger.waiters.by_ticket[ticket]
        waiter = replica.waiters[ticket]
        late = self._awaited(replica) or replica
        books = ledger.capacity.at[late.place]
        if late.state is State.QUEUED and books.need_of(late) > books.free_bytes:
            error: TrimsError = self.room.no_room(books, late)
        else:
            error = DeadlineError(capacity_errors.why_late(late))
        ledger.leave(ticket)
        self.refuse(waiter, error, at_s)
        self.drop_if_unwanted(replica, at_s)

    def _waiter_joined(self, replica: Replica, at_s: float) -> None:
        """Decide again about a replica that a waiter has joined, and about the host's if a device waits for that."""
        if replica.state is State.DRAINING and replica.leases:
            self.refuse_impatient(replica, capacity_errors.leaving(replica), at_s)
        elif replica.state is State.QUEUED and replica in self.room.lines[replica.place]:
            self.room.fresh[replica.generation] = replica
        elif replica.claimed_bytes:
            self.room.raise_priority_holders(replica)
        if replica in self._ledger.unawaited and self.room.is_awaited(replica):
            self._ledger.raise_priority(replica)
        awaited = self._awaited(replica)
        if awaited is not None:
            self._waiter_joined(awaited, at_s)

    def _awaited(self, replica: Replica) -> Replica | None:
        """Return the replica on the host that a device's replica waits for; None if it waits for none."""
        ticket = self._ledger.promotions.ticket_of(replica)
        return None if ticket is None else self._ledger.waiters.by_ticket.get(ticket)

    def drop_if_unwanted(self, replica: Replica, at_s: float) -> None:
        """Take a queued replica without a waiter out of the queue. A fill that runs is finished, for later opens."""
        if replica.state is State.QUEUED and not replica.waiters:
            self._await_no_longer(replica, at_s)
            self.room.leave_queue(replica)
            self._ledger.remove(replica, at_s, "last waiter gone")
            self._ledger.instructions.abandon(replica)

    def _await_no_longer(self, replica: Replica, at_s: float) -> None:
        """Stop waiting for the host's image on behalf of a device's replica."""
        ticket = self._ledger.promotions.ticket_of(replica)
        if ticket is not None:
            self._ledger.promotions.end(ticket)
            self.leave(ticket, at_s)

    def refuse_impatient(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        """Refuse the waiters that have no deadline, also those at a device that waits for this replica."""
        for device in self._devices_behind(replica):
            self.refuse_impatient(device, error, at_s)
        for waiter in list(replica.impatient.values()):
            self._ledger.leave(waiter.ticket)
            self.turn_away(replica, waiter, error, at_s)
        self.drop_if_unwanted(replica, at_s)

    def _devices_behind(self, replica: Replica) -> list[Replica]:
        """Device replicas of the same image that wait for this one."""
        if not replica.promotions:
            return []
        siblings = self._ledger.table.places_of(replica.key)
        return [each for each in siblings if self._awaited(each) is replica]

    def refuse_all(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        """Refuse every waiter of a replica; one that is queued leaves the queue."""
        for waiter in self._ledger.take(replica):
            self.turn_away(replica, waiter, error, at_s)
        self.drop_if_unwanted(replica, at_s)

    # -- sizes -----------------------------------------------------------------------------------------------------

    def find_sizes(self, key: str, at_s: float) -> None:
        """Have the queued replicas of an image decided on if its size is known; else begin to find out its size."""
        for replica in self._ledger.table.places_of(key):
            if replica.state is State.QUEUED:
                self._find_size(replica, at_s)

    def _find_size(self, replica: Replica, at_s: float) -> None:
        """Have a queued replica decided on if its size is known; else begin to find out its size."""
        ledger = self._ledger
        source = ledger.table.source_of(replica)
        if source is not None:
            replica.nbytes = source.nbytes
            self._await_no_longer(replica, at_s)  # it may have come to lie elsewhere first
        elif not replica.measured:
            self.room.leave_queue(replica)  # what it was going to be copied from may be gone
            self._ask_for_size(replica, at_s)
            return
        if replica not in self.room.lines[replica.place] and not replica.claimed_bytes:
            self.room.fresh[replica.generation] = replica

    def _ask_for_size(self, replica: Replica, at_s: float) -> None:
        host = host_for(self._ledger.capacity.at)
        if replica.place.tier is TierKind.GPU and host is not None:
            self._bring_to(host, replica, at_s)
        elif not replica.measuring:
            replica.measuring = next(self._measurements)
            awaited = self.room.is_awaited(replica)
            if not awaited:
                self._ledger.unawaited.begin(replica, ())
            self._ledger.instructions.measure(replica, behind=not awaited)

    def _bring_to(self, host: Place, replica: Replica, at_s: float) -> None:
        """Wait for the image at a host place on behalf of a device, where nothing can be converted."""
        ledger = self._ledger
        if ledger.promotions.ticket_of(replica) is None:
            there = ledger.table.find(replica.key, host)
            brought = KeepAlive(replica.keep_alive_s if host == CPU else None)  # what lies on disk takes no memory
            keep = brought if there is None else None
            waiter = ledger.promotions.begin(replica, host)
            self.request(Requested(at_s=at_s, key=replica.key, place=host, waiter=waiter, keep=keep))


def _is_of_a_device(error: TrimsError) -> bool:
    """Return whether another device may do what this error says that one cannot: a tenant's quota counts for all."""
    return isinstance(error, (CapacityError, InUseError, LostPeerError)) and not isinstance(error, QuotaError)
