"""Admission: from a request to a fill. Which waiter is served, which replica gets room, and what is evicted for it.

As soon as the size of a queued replica is known, one of four things happens to it:

1. It starts: there is room, or idle replicas were evicted and the room is free.
2. It claims: room that is on its way back is kept for it. Only a running copy delays that, no lease.
3. It stands in line: only the end of leases makes room. Its waiters without a deadline are refused at once.
4. It is refused for good: it exceeds the place.

A later arrival may overtake the first in line; otherwise one patient waiter would hold up a whole place. Later arrivals
may take as many bytes as the first needs. After that, room that comes free is kept for the first for `RESERVATION_S`
seconds; then later arrivals may overtake it again. So the first cannot starve the others, nor the others the first.

While an event is handled, the ledger only notes what changes. Which replica gets room is decided at the end of the
event (`settle`), so that no decision is made in the middle of another. Every decision costs O(log n). Not covered: what
happens once a fill runs (`Residency`).
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
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
from trims.core.residency.admission_queue import AdmissionQueue
from trims.core.residency.events import KeepAlive, MemoryShort, Requested
from trims.core.residency.fill_failures import RETRY_EARNED_S
from trims.core.residency.promotion import host_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.core.errors import NoSpaceError
    from trims.core.lease import Waiter
    from trims.core.place import Place
    from trims.core.policy.capacity import PlaceBooks
    from trims.core.replica import Replica
    from trims.core.residency.ledger import Ledger

#: Keep-alive of the artifact's own files without a reader: opening them again takes milliseconds.
IN_PLACE_STAYS = KeepAlive(60.0)
#: Keep-alive is about memory: what an open finds on disk stays until the disk tier needs the room.
STAYS = KeepAlive(None)
#: Seconds for which room that comes free is kept for the first in line, once later arrivals have taken as many bytes as
#: the first needs.
RESERVATION_S = 5.0
#: Seconds for which a place where the machine had no room counts as no larger than that. Then its tier's capacity is
#: tried again: another program may have given room back.
BELIEVED_FULL_S = 60.0
#: Fills for the same waiters that may find the machine without room; after the last one, they are refused.
_FILLS_WITHOUT_ROOM = 3


class Admission:
    """The queues of all places.

    Attributes:
        lines: Replicas that wait for leases to end, by place.
        claims: Replicas that wait for room that is on its way back, by place, then by generation, oldest claim first.
        fresh: Replicas whose size became known, or whose waiters became more, and about which nothing was decided
            since, by generation.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._measurements = itertools.count(1)
        self.fresh: OrderedDict[int, Replica] = OrderedDict()
        self.lines: dict[Place, AdmissionQueue] = {place: AdmissionQueue() for place in ledger.capacity.at}
        self.claims: dict[Place, OrderedDict[int, Replica]] = {place: OrderedDict() for place in ledger.capacity.at}

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
        if earned and not (self.lines[CPU] or self.claims[CPU]) and placement.may_pay(ledger, tenant, event.key):
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

    def give_way(self, event: MemoryShort) -> None:
        """Evict idle replicas for bytes that the machine lacks, and believe for a while that there is no more room."""
        ledger, books = self._ledger, self._ledger.capacity.at[event.place]
        missing = event.missing_bytes - books.shares[Share.LEAVING]
        self._evict(event.place, missing, event.at_s, spare_promised=False)
        books.found_full(0, event.at_s + BELIEVED_FULL_S)
        ledger.due.add(event.at_s + BELIEVED_FULL_S, event.place)
        ledger.changed_places[event.place] = None

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
            self._drop_if_unwanted(replica, at_s)

    def expire(self, ticket: int, at_s: float) -> None:
        """Refuse a waiter whose deadline has passed, with an error that says what took so long."""
        ledger = self._ledger
        replica = ledger.waiters.by_ticket[ticket]
        waiter = replica.waiters[ticket]
        late = self._awaited(replica) or replica
        books = ledger.capacity.at[late.place]
        if late.state is State.QUEUED and books.need_of(late) > books.free_bytes:
            error: TrimsError = self._no_room(books, late)
        else:
            error = DeadlineError(capacity_errors.why_late(late))
        ledger.leave(ticket)
        self.refuse(waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

    def _no_room(self, books: PlaceBooks, replica: Replica) -> CapacityError:
        """Return the capacity error. It mentions a copy on disk that would serve if it were not being evicted."""
        on_disk = self._ledger.table.find(replica.key, DISK)
        leaves = on_disk is not None and on_disk.state is State.DRAINING and bool(on_disk.leases)
        return capacity_errors.no_room(books, replica, on_disk if leaves else None)

    def _waiter_joined(self, replica: Replica, at_s: float) -> None:
        """Decide again about a replica that a waiter has joined, and about the host's if a device waits for that."""
        if replica.state is State.DRAINING and replica.leases:
            self._refuse_impatient(replica, capacity_errors.leaving(replica), at_s)
        elif replica.state is State.QUEUED and replica in self.lines[replica.place]:
            self.fresh[replica.generation] = replica
        elif replica.claimed_bytes:
            self._raise_priority_holders(replica)
        if replica in self._ledger.unawaited and self._is_awaited(replica):
            self._ledger.raise_priority(replica)
        awaited = self._awaited(replica)
        if awaited is not None:
            self._waiter_joined(awaited, at_s)

    def _awaited(self, replica: Replica) -> Replica | None:
        """Return the replica on the host that a device's replica waits for; None if it waits for none."""
        ticket = self._ledger.promotions.ticket_of(replica)
        return None if ticket is None else self._ledger.waiters.by_ticket.get(ticket)

    def _is_awaited(self, replica: Replica) -> bool:
        """Return whether a request waits for the replica, and not only the store or residency itself."""
        earned = self._ledger.promotions.earned
        return any(not (each.internal or each.ticket in earned) for each in replica.waiters.values())

    def _raise_priority_holders(self, replica: Replica) -> None:
        """Let fills that keep room from a queued replica take no more pauses, if a request waits for it."""
        holders = self._ledger.unawaited.at(replica.place)
        if holders and self._is_awaited(replica):
            for holder in holders:
                self._ledger.raise_priority(holder)

    def _drop_if_unwanted(self, replica: Replica, at_s: float) -> None:
        """Take a queued replica without a waiter out of the queue. A fill that runs is finished, for later opens."""
        if replica.state is State.QUEUED and not replica.waiters:
            self._await_no_longer(replica, at_s)
            self._leave_queue(replica)
            self._ledger.remove(replica, at_s, "last waiter gone")
            self._ledger.instructions.abandon(replica)

    def _leave_queue(self, replica: Replica) -> None:
        """Take a queued replica out of the line and drop its claim, so that replicas it held back may go on."""
        stood = self.lines[replica.place].remove(replica)
        claimed = self.claims[replica.place].pop(replica.generation, None) is not None
        self.fresh.pop(replica.generation, None)
        if stood or claimed:
            self._ledger.capacity.claim(replica, 0)
            self._ledger.changed_places[replica.place] = None

    def _await_no_longer(self, replica: Replica, at_s: float) -> None:
        """Stop waiting for the host's image on behalf of a device's replica."""
        ticket = self._ledger.promotions.ticket_of(replica)
        if ticket is not None:
            self._ledger.promotions.end(ticket)
            self.leave(ticket, at_s)

    def _refuse_impatient(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        """Refuse the waiters that have no deadline, also those at a device that waits for this replica."""
        for device in self._devices_behind(replica):
            self._refuse_impatient(device, error, at_s)
        for waiter in list(replica.impatient.values()):
            self._ledger.leave(waiter.ticket)
            self.turn_away(replica, waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

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
        self._drop_if_unwanted(replica, at_s)

    # -- what has to be decided ------------------------------------------------------------------------------------

    def settle(self, at_s: float) -> None:
        """Decide which replicas get room, wherever something has changed, until nothing changes any more."""
        ledger = self._ledger
        while True:
            if ledger.changed_keys:
                self._find_sizes(ledger.changed_keys.popitem()[0], at_s)
            elif ledger.changed_places:
                self._admit(ledger.changed_places.popitem()[0], at_s)
            elif self.fresh:
                self._decide(self.fresh.popitem(last=False)[1], at_s)
            elif ledger.capacity.too_many_images and (surplus := self._surplus_image()) is not None:
                ledger.free(surplus, at_s, "evicted: the daemon may open no more images", evicted=True)
            else:
                return

    # -- sizes -----------------------------------------------------------------------------------------------------

    def _find_sizes(self, key: str, at_s: float) -> None:
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
            self._leave_queue(replica)  # what it was going to be copied from may be gone
            self._ask_for_size(replica, at_s)
            return
        if replica not in self.lines[replica.place] and not replica.claimed_bytes:
            self.fresh[replica.generation] = replica

    def _ask_for_size(self, replica: Replica, at_s: float) -> None:
        host = host_for(self._ledger.capacity.at)
        if replica.place.tier is TierKind.GPU and host is not None:
            self._bring_to(host, replica, at_s)
        elif not replica.measuring:
            replica.measuring = next(self._measurements)
            awaited = self._is_awaited(replica)
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

    # -- room ------------------------------------------------------------------------------------------------------

    def _admit(self, place: Place, at_s: float) -> None:
        """Room has changed at a place: serve claims, then the first in line, then what may overtake it."""
        books, line = self._ledger.capacity.at[place], self.lines[place]
        if books.workspace_bytes and books.free_bytes < 0:
            self._make_way(place, at_s)
        if not line.members and not self.claims[place]:
            return
        self._serve_claims(place, at_s)
        while (first := line.first()) is not None and self._decide(first, at_s):
            pass
        while first is not None and (small := line.smallest_after(first)) is not None:
            if not self._may_fit(books, small) or not self._decide(small, at_s):
                return

    @staticmethod
    def _may_fit(books: PlaceBooks, replica: Replica) -> bool:
        """Return whether the replica may start now: a cheap test that spares most of the full decisions."""
        return books.need_of(replica) <= books.coming_bytes + books.evictable_bytes(spare_promised=False)

    def _serve_claims(self, place: Place, at_s: float) -> None:
        """Start what fits now, oldest claim first. Where readers' work has grown, claims are decided upon again."""
        books, claims = self._ledger.capacity.at[place], self.claims[place]
        while claims:
            oldest = next(iter(claims.values()))
            need = books.need_of(oldest)
            if not self._has_payer(oldest, at_s):
                continue
            if need <= books.free_bytes:
                self._start_fill(oldest, at_s)
            elif need > books.free_bytes + books.shares[Share.LEAVING]:
                self._give_up_claim(oldest)
            else:
                self._raise_priority_holders(oldest)
                break
        while claims and books.coming_bytes < 0:
            self._give_up_claim(next(reversed(claims.values())))

    def _give_up_claim(self, replica: Replica) -> None:
        self._leave_queue(replica)
        self.fresh[replica.generation] = replica

    def _decide(self, replica: Replica, at_s: float) -> bool:
        """Give a queued replica of known size room or a claim, or refuse it.

        Return whether it no longer waits for leases.
        """
        books, line = self._ledger.capacity.at[replica.place], self.lines[replica.place]
        if books.least_need_of(replica) > books.stated_bytes:
            self.refuse_all(replica, capacity_errors.too_large(books, replica), at_s)
            return True
        if not self._has_payer(replica, at_s):
            return True
        need, first = books.need_of(replica), line.first()
        overtaken = first if first is not None and first.generation < replica.generation else None
        if overtaken is not None and not self._may_overtake(overtaken, need, at_s):
            return self._stand_in_line(replica, at_s, behind=overtaken)
        self._evict_for(replica, need, at_s)
        if need > books.coming_bytes and not self._may_try_anyway(replica, need):
            return self._stand_in_line(replica, at_s)
        if overtaken is not None:
            overtaken.overtaken_bytes += need
        if need <= books.free_bytes:
            self._start_fill(replica, at_s)
        else:
            self._claim(replica, need)
        return True

    def _may_try_anyway(self, replica: Replica, need: int) -> bool:
        """Return whether a replica that has not tried yet lacks room only because the machine is believed to be full.

        Nothing can be evicted, so the tier is asked: another program may have given room back since.
        """
        books = self._ledger.capacity.at[replica.place]
        believed = books.stated_bytes - books.capacity_bytes
        if replica.fills_without_room or not self._insists(replica) or need > books.coming_bytes + believed:
            return False
        books.forget_full(math.inf)
        return True

    def _claim(self, replica: Replica, need: int) -> None:
        self.lines[replica.place].remove(replica)
        self._ledger.capacity.claim(replica, need)
        self.claims[replica.place][replica.generation] = replica
        self._raise_priority_holders(replica)

    def _stand_in_line(self, replica: Replica, at_s: float, behind: Replica | None = None) -> bool:
        """Let a replica wait for leases to end; refuse waiters without a deadline. Return whether no waiter is left."""
        if replica.impatient or replica.promotions:
            books = self._ledger.capacity.at[replica.place]
            no_room = self._no_room(books, replica)
            self._refuse_impatient(
                replica, capacity_errors.reserved(books, replica, behind) if behind else no_room, at_s
            )
        if replica.state is not State.QUEUED:
            return True
        self.lines[replica.place].add(replica)
        self._raise_priority_holders(replica)
        if replica.impatient:  # a waiter was turned away here, and at the next place as well: it is back
            self.fresh[replica.generation] = replica
        return False

    def _may_overtake(self, first: Replica, need: int, at_s: float) -> bool:
        """Return whether a later arrival may overtake `first`, until others took as many bytes as `first` needs."""
        if first.reserved_until_s is not None:
            if at_s < first.reserved_until_s:
                return False
            first.reserved_until_s, first.overtaken_bytes = None, 0
        if first.overtaken_bytes + need <= self._ledger.capacity.at[first.place].need_of(first):
            return True
        first.reserved_until_s = at_s + RESERVATION_S
        self._ledger.due.add(first.reserved_until_s, first.place)
        return False

    def _start_fill(self, replica: Replica, at_s: float) -> None:
        ledger = self._ledger
        self._leave_queue(replica)
        source = ledger.table.source_of(replica)
        if source is not None:
            ledger.lend(source, replica)
        ledger.tenancy.pay(replica, ledger.capacity.at[replica.place].takes(replica.nbytes))
        replica.returned_before = ledger.capacity.at[replica.place].returned_bytes
        ledger.step(replica, State.FILLING, at_s, f"room found, source {replica.source or 'artifact'}")
        awaited = not replica.waiters or self._is_awaited(replica)  # a demotion has no waiter, and makes room for one
        if not awaited:
            ledger.unawaited.begin(replica, {replica.place, replica.source or replica.place})
        ledger.instructions.fill(replica, behind=not awaited)

    # -- quotas ----------------------------------------------------------------------------------------------------

    def _has_payer(self, replica: Replica, at_s: float) -> bool:
        """Return whether a tenant may pay for a queued replica, or none has to; else turn its waiters away.

        A tenant that has as much in memory as it may has its own idle replicas evicted, unless they are worth more.
        """
        ledger, place = self._ledger, replica.place
        need = ledger.capacity.at[place].takes(replica.nbytes)
        if not self._may_be_leased(replica, need, at_s):
            return False
        payer = ledger.tenancy.payer_of(replica, need)
        missing = 0 if payer is None else payer.missing_bytes(need)
        if payer is None or not missing:
            return True
        if payer.can_have(place, need):
            victims = payer.victims(place, missing)
            if self._insists(replica) or placement.is_worth_more(ledger, replica.key, victims):
                for victim in victims:
                    ledger.free(victim, at_s, f"evicted for room in the quota of {payer.name}", evicted=True)
                return True
        self._leave_queue(replica)
        for waiter in ledger.take(replica):
            account = ledger.tenancy.accounts[waiter.tenant or payer.name]
            most = account.quota.resident_bytes or 0
            held = account.resident_bytes - account.idle_bytes[place]
            self.turn_away(replica, waiter, capacity_errors.too_much_resident(account.name, held, need, most), at_s)
        if replica.waiters:  # one was turned away at the next place as well: it is back, and insists now
            self.fresh[replica.generation] = replica
        self._drop_if_unwanted(replica, at_s)
        return False

    def _may_be_leased(self, replica: Replica, need: int, at_s: float) -> bool:
        """Turn those waiters away that could have no lease once the bytes are there. Return whether any other is left.

        Else the bytes would be brought for a request that is refused in the end, and others would leave for them.
        """
        ledger = self._ledger
        errors = {
            tenant: ledger.tenancy.refusal_of_bytes(tenant, replica, need)
            for tenant in replica.tenants
            if tenant is not None
        }
        if not any(errors.values()):
            return True
        for _ in range(2):  # one that is turned away at the next place as well is back, and insists
            for waiter in list(replica.waiters.values()):
                error = errors.get(waiter.tenant or "")
                if error is not None and waiter.wants_lease:
                    ledger.leave(waiter.ticket)
                    self.turn_away(replica, waiter, error, at_s)
        if replica.waiters:
            return True
        self._drop_if_unwanted(replica, at_s)
        return False

    # -- eviction --------------------------------------------------------------------------------------------------

    def _evict_for(self, replica: Replica, need: int, at_s: float) -> None:
        """Evict idle replicas in the policy's order until there is room; none if all of them were not enough."""
        # What is promised to a device goes for a request for this place itself. If it went for another image that a
        # device waits for, each of the two would have the other loaded again for as long as both wait.
        spare = replica.promotions == len(replica.waiters)
        books = self._ledger.capacity.at[replica.place]
        missing = need - books.coming_bytes
        if 0 < missing <= books.evictable_bytes(spare_promised=spare) and self._may_evict(replica, missing):
            self._evict(replica.place, missing, at_s, spare_promised=spare)

    def _may_evict(self, replica: Replica, missing: int) -> bool:
        """Return whether a waiter insists on this place, or the image is worth more than those that would leave."""
        return self._insists(replica) or placement.is_worth_room(self._ledger, replica.key, missing)

    def _insists(self, replica: Replica) -> bool:
        """Return whether a waiter cannot be served elsewhere, or the image is pinned, or the place is not `cpu`."""
        pinned = (replica.key, CPU) in self._ledger.capacity.pins
        return replica.modest < len(replica.waiters) or replica.place is not CPU or pinned

    def _make_way(self, place: Place, at_s: float) -> None:
        """Readers' work exceeds what is free here: evict idle replicas, as far as there are any."""
        books = self._ledger.capacity.at[place]
        missing = -books.free_bytes - books.shares[Share.LEAVING]
        self._evict(place, missing, at_s, spare_promised=False)

    def _evict(self, place: Place, missing: int, at_s: float, *, spare_promised: bool) -> None:
        books, table = self._ledger.capacity.at[place], self._ledger.table
        while missing > 0 and (key := books.next_victim(spare_promised=spare_promised)) is not None:
            victim = table.replicas[key, place]
            missing -= victim.charged_bytes
            if not self._demote(victim, at_s):
                self._ledger.free(victim, at_s, "evicted for room", evicted=True)

    def _surplus_image(self) -> Replica | None:
        """Return the image on the host that has been idle longest."""
        ledger = self._ledger
        hosts = [place for place in ledger.capacity.at if place.tier not in (TierKind.GPU, TierKind.CLOUD)]
        victims = [(ledger.capacity.at[place].next_victim(spare_promised=True), place) for place in hosts]
        idle = [ledger.table.replicas[key, place] for key, place in victims if key is not None]
        return min(idle, key=lambda replica: replica.last_used_s, default=None)

    def _demote(self, victim: Replica, at_s: float) -> bool:
        """Copy a device's image to the host first if it is not there and fits beside what is.

        Return whether it does.
        """
        ledger = self._ledger
        if victim.place.tier is not TierKind.GPU or CPU not in ledger.capacity:
            return False
        books = ledger.capacity.at[CPU]
        if ledger.table.find(victim.key, CPU) is not None or victim.nbytes > min(books.free_bytes, books.coming_bytes):
            return False
        if self.lines[CPU] or self.claims[CPU]:  # the room is kept for those that wait for it
            return False
        if victim.payer and ledger.tenancy.accounts[victim.payer].missing_bytes(victim.nbytes - victim.charged_bytes):
            return False
        host = self.enqueue(victim.key, CPU, at_s)
        host.payer = victim.payer
        host.nbytes, host.keep_alive_s = victim.nbytes, victim.keep_alive_s
        self._start_fill(host, at_s)
        ledger.retire(victim, at_s, "evicted for room, demoted to cpu")
        return True


def _is_of_a_device(error: TrimsError) -> bool:
    """Return whether another device may do what this error says that one cannot: a tenant's quota counts for all."""
    return isinstance(error, (CapacityError, InUseError, LostPeerError)) and not isinstance(error, QuotaError)
