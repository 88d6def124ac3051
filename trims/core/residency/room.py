"""Room at all places: which queued replica gets it, and what is evicted for it.

As soon as the size of a queued replica is known, one of four things happens to it:

1. It starts: there is room, or idle replicas were evicted and the room is free.
2. It claims: room that is on its way back is kept for it. Only a running copy delays that, no lease.
3. It stands in line: only the end of leases makes room. Its waiters without a deadline are refused at once.
4. It is refused for good: it exceeds the place.

A later arrival may overtake the first in line; otherwise one patient waiter would hold up a whole place. Later arrivals
may take as many bytes as the first needs. After that, room that comes free is kept for the first for `RESERVATION_S`
seconds; then later arrivals may overtake it again. So the first cannot starve the others, nor the others the first.

While an event is handled, the ledger only notes what changes. Which replica gets room is decided at the end of the
event (`settle`), so that no decision is made in the middle of another. Every decision costs O(log n).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from trims.core.place import CPU, DISK, TierKind
from trims.core.policy import capacity_errors
from trims.core.replica import Share, State
from trims.core.residency import placement
from trims.core.residency.admission_queue import AdmissionQueue

if TYPE_CHECKING:
    from trims.core.errors import CapacityError, TrimsError
    from trims.core.lease import Waiter
    from trims.core.place import Place
    from trims.core.policy.capacity import PlaceBooks
    from trims.core.replica import Replica
    from trims.core.residency.events import MemoryShort
    from trims.core.residency.ledger import Ledger

#: Seconds for which room that comes free is kept for the first in line, once later arrivals have taken as many bytes as
#: the first needs.
RESERVATION_S = 5.0
#: Seconds for which a place where the machine had no room counts as no larger than that. Then its tier's capacity is
#: tried again: another program may have given room back.
BELIEVED_FULL_S = 60.0


class Waiters(Protocol):
    """The side of admission that knows who waits for room."""

    def enqueue(self, key: str, place: Place, at_s: float) -> Replica:
        """Create a replica in the queue of its place."""

    def find_sizes(self, key: str, at_s: float) -> None:
        """Have the queued replicas of an image decided on, or measured."""

    def turn_away(self, replica: Replica, waiter: Waiter, error: TrimsError, at_s: float) -> None:
        """Serve a waiter elsewhere, or refuse it."""

    def refuse_all(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        """Turn every waiter of a replica away."""

    def refuse_impatient(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        """Turn the waiters without a deadline away."""

    def drop_if_unwanted(self, replica: Replica, at_s: float) -> None:
        """Take a queued replica without a waiter out of the queue."""


class Room:
    """Room at all places, and the queues for it.

    Args:
        waiting: Answers waiters for which there is no room.

    Attributes:
        lines: Replicas that wait for leases to end, by place.
        claims: Replicas that wait for room that is on its way back, by place, then by generation, oldest claim first.
        fresh: Replicas whose size became known, or whose waiters became more, and about which nothing was decided
            since, by generation.
    """

    def __init__(self, ledger: Ledger, waiting: Waiters) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self.fresh: OrderedDict[int, Replica] = OrderedDict()
        self.lines: dict[Place, AdmissionQueue] = {place: AdmissionQueue() for place in ledger.capacity.at}
        self.claims: dict[Place, OrderedDict[int, Replica]] = {place: OrderedDict() for place in ledger.capacity.at}

    def settle(self, at_s: float) -> None:
        """Decide which replicas get room, wherever something has changed, until nothing changes any more."""
        ledger = self._ledger
        while True:
            if ledger.changed_keys:
                self._waiting.find_sizes(ledger.changed_keys.popitem()[0], at_s)
            elif ledger.changed_places:
                self._admit(ledger.changed_places.popitem()[0], at_s)
            elif self.fresh:
                self._decide(self.fresh.popitem(last=False)[1], at_s)
            elif ledger.capacity.too_many_images and (surplus := self._surplus_image()) is not None:
                ledger.free(surplus, at_s, "evicted: the daemon may open no more images", evicted=True)
            else:
                return

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
                self.raise_priority_holders(oldest)
                break
        while claims and books.coming_bytes < 0:
            self._give_up_claim(next(reversed(claims.values())))

    def _give_up_claim(self, replica: Replica) -> None:
        self.leave_queue(replica)
        self.fresh[replica.generation] = replica

    def _decide(self, replica: Replica, at_s: float) -> bool:
        """Give a queued replica of known size room or a claim, or refuse it.

        Return whether it no longer waits for leases.
        """
        books, line = self._ledger.capacity.at[replica.place], self.lines[replica.place]
        if books.least_need_of(replica) > books.stated_bytes:
            self._waiting.refuse_all(replica, capacity_errors.too_large(books, replica), at_s)
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

    def no_room(self, books: PlaceBooks, replica: Replica) -> CapacityError:
        """Return the capacity error. It mentions a copy on disk that would serve if it were not being evicted."""
        on_disk = self._ledger.table.find(replica.key, DISK)
        leaves = on_disk is not None and on_disk.state is State.DRAINING and bool(on_disk.leases)
        return capacity_errors.no_room(books, replica, on_disk if leaves else None)

    def _claim(self, replica: Replica, need: int) -> None:
        self.lines[replica.place].remove(replica)
        self._ledger.capacity.claim(replica, need)
        self.claims[replica.place][replica.generation] = replica
        self.raise_priority_holders(replica)

    def _stand_in_line(self, replica: Replica, at_s: float, behind: Replica | None = None) -> bool:
        """Let a replica wait for leases to end; refuse waiters without a deadline. Return whether no waiter is left."""
        if replica.impatient or replica.promotions:
            books = self._ledger.capacity.at[replica.place]
            no_room = self.no_room(books, replica)
            self._waiting.refuse_impatient(
                replica, capacity_errors.reserved(books, replica, behind) if behind else no_room, at_s
            )
        if replica.state is not State.QUEUED:
            return True
        self.lines[replica.place].add(replica)
        self.raise_priority_holders(replica)
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
        self.leave_queue(replica)
        source = ledger.table.source_of(replica)
        if source is not None:
            ledger.lend(source, replica)
        ledger.tenancy.pay(replica, ledger.capacity.at[replica.place].takes(replica.nbytes))
        replica.returned_before = ledger.capacity.at[replica.place].returned_bytes
        ledger.step(replica, State.FILLING, at_s, f"room found, source {replica.source or 'artifact'}")
        awaited = not replica.waiters or self.is_awaited(replica)  # a demotion has no waiter, and makes room for one
        if not awaited:
            ledger.unawaited.begin(replica, {replica.place, replica.source or replica.place})
        ledger.instructions.fill(replica, behind=not awaited)

    def leave_queue(self, replica: Replica) -> None:
        """Take a queued replica out of the line and drop its claim, so that replicas it held back may go on."""
        stood = self.lines[replica.place].remove(replica)
        claimed = self.claims[replica.place].pop(replica.generation, None) is not None
        self.fresh.pop(replica.generation, None)
        if stood or claimed:
            self._ledger.capacity.claim(replica, 0)
            self._ledger.changed_places[replica.place] = None

    def is_busy(self, place: Place) -> bool:
        """Return whether replicas wait for room at a place."""
        return bool(self.lines[place] or self.claims[place])

    def is_awaited(self, replica: Replica) -> bool:
        """Return whether a request waits for the replica, and not only the store or residency itself."""
        earned = self._ledger.promotions.earned
        return any(not (each.internal or each.ticket in earned) for each in replica.waiters.values())

    def raise_priority_holders(self, replica: Replica) -> None:
        """Let fills that keep room from a queued replica take no more pauses, if a request waits for it."""
        holders = self._ledger.unawaited.at(replica.place)
        if holders and self.is_awaited(replica):
            for holder in holders:
                self._ledger.raise_priority(holder)

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
        self.leave_queue(replica)
        for waiter in ledger.take(replica):
            account = ledger.tenancy.accounts[waiter.tenant or payer.name]
            most = account.quota.resident_bytes or 0
            held = account.resident_bytes - account.idle_bytes[place]
            self._waiting.turn_away(
                replica, waiter, capacity_errors.too_much_resident(account.name, held, need, most), at_s
            )
        if replica.waiters:  # one was turned away at the next place as well: it is back, and insists now
            self.fresh[replica.generation] = replica
        self._waiting.drop_if_unwanted(replica, at_s)
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
                    self._waiting.turn_away(replica, waiter, error, at_s)
        if replica.waiters:
            return True
        self._waiting.drop_if_unwanted(replica, at_s)
        return False

    # -- eviction --------------------------------------------------------------------------------------------------

    def give_way(self, event: MemoryShort) -> None:
        """Evict idle replicas for bytes that the machine lacks, and believe for a while that there is no more room."""
        ledger, books = self._ledger, self._ledger.capacity.at[event.place]
        missing = event.missing_bytes - books.shares[Share.LEAVING]
        self._evict(event.place, missing, event.at_s, spare_promised=False)
        books.found_full(0, event.at_s + BELIEVED_FULL_S)
        ledger.due.add(event.at_s + BELIEVED_FULL_S, event.place)
        ledger.changed_places[event.place] = None

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
        if self.is_busy(CPU):  # the room is kept for those that wait for it
            return False
        if victim.payer and ledger.tenancy.accounts[victim.payer].missing_bytes(victim.nbytes - victim.charged_bytes):
            return False
        host = self._waiting.enqueue(victim.key, CPU, at_s)
        host.payer = victim.payer
        host.nbytes, host.keep_alive_s = victim.nbytes, victim.keep_alive_s
        self._start_fill(host, at_s)
        ledger.retire(victim, at_s, "evicted for room, demoted to cpu")
        return True
