"""Admission: from a request to a fill. Who waits, who gets room, in which order, and what has to go for it.

Room is given in order of arrival; an image that waits for room holds back those behind it, or a large one would starve
behind small ones. What an event changes is only noted (`look_again`); who gets room because of it is decided once the
event is over (`settle`), so that no decision is made in the middle of another. Not covered: what happens once a fill
runs (`Residency`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from trims.core import books
from trims.core.errors import DeadlineError, TooLargeError, TrimsError
from trims.core.events import Requested
from trims.core.place import CPU, Tier
from trims.core.promotion import host_for
from trims.core.replica import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.core.lease import Waiter
    from trims.core.ledger import Ledger
    from trims.core.place import Place
    from trims.core.replica import Replica


class _Answer(Enum):
    """What a place says to a replica that needs room."""

    FITS = auto()
    WAITS = auto()
    REFUSED = auto()


class Admission:
    """The queues of all places.

    Args:
        ledger: The books.

    Attributes:
        queues: Replicas that wait for room, in order of arrival.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._unsettled: dict[Place, None] = {}
        self.queues: dict[Place, list[Replica]] = {place: [] for place in ledger.room.capacities}

    # -- who waits -------------------------------------------------------------------------------------------------

    def request(self, event: Requested) -> None:
        """Somebody wants a replica: serve him, refuse him, or let him wait."""
        ledger = self._ledger
        if event.place not in ledger.room.capacities:
            self.refuse(event.waiter, books.no_such_place(event.place, ledger.room.capacities), event.at_s)
            return
        replica = ledger.shelf.find(event.key, event.place) or self.enqueue(event.key, event.place, event.at_s)
        replica.keep_alive_s = event.keep_alive_s
        if event.working_bytes is not None and replica.place.tier is Tier.GPU:
            self.expect_work(replica, event.working_bytes)
        if replica.state is State.SEALED:
            self.serve(replica, event.waiter, event.at_s, warm=True)
        else:
            ledger.join(replica, event.waiter)
            self._look_at(replica, event.at_s)

    def enqueue(self, key: str, place: Place, at_s: float) -> Replica:
        """A new replica at the end of its place's queue."""
        replica = self._ledger.shelf.add(key, place)
        self.queues[place].append(replica)
        self._ledger.step(replica, State.QUEUED, at_s, "first waiter")
        return replica

    def expect_work(self, replica: Replica, nbytes: int) -> None:
        """Each session that reads it needs so much on the device beside it."""
        if nbytes != replica.working_bytes:
            self._ledger.expect_work(replica, nbytes)
            self.look_again(replica.place)

    def serve(self, replica: Replica, waiter: Waiter, at_s: float, *, warm: bool) -> None:
        """Give a waiter what he waited for."""
        ledger = self._ledger
        if waiter.reader is not None:
            ledger.grant(replica, waiter, waiter.reader, at_s, warm=warm)
            if replica.working_bytes:
                self.look_again(replica.place)
            return
        ledger.touch(replica, at_s)
        if ledger.promotions.end(waiter.ticket) is None:
            ledger.outbox.ready(waiter, replica)

    def refuse(self, waiter: Waiter, error: TrimsError, at_s: float) -> None:
        """Tell a waiter; one of our own, who waited for the host on a device's behalf, passes it on."""
        ledger = self._ledger
        promotion = ledger.promotions.end(waiter.ticket)
        if promotion is None:
            ledger.outbox.refuse(waiter, error)
            return
        replica, host = promotion
        another = host_for(ledger.room.capacities, after=host) if isinstance(error, TooLargeError) else None
        if another is None:
            self._refuse_all(replica, error, at_s)
        else:
            self._bring_to(another, replica, at_s)

    def leave(self, ticket: int, at_s: float) -> None:
        """A waiter gave up."""
        replica = self._ledger.leave(ticket)
        if replica is not None:
            self._was_left(replica, at_s)

    def expire(self, replica: Replica, waiter: Waiter, at_s: float) -> None:
        """A waiter's deadline has passed: tell him what it was that took so long."""
        ledger = self._ledger
        late = self._awaited(replica) or replica
        if late.state is State.QUEUED and ledger.room.need_of(late) > ledger.room.free_bytes(late.place):
            error: TrimsError = ledger.room.refusal(late, ledger.shelf.replicas.values())
        else:
            error = DeadlineError(books.why_late(late))
        ledger.leave(waiter.ticket)
        self.refuse(waiter, error, at_s)
        self._was_left(replica, at_s)

    def _was_left(self, replica: Replica, at_s: float) -> None:
        """One waits for it no longer: it may be wanted no more, or his work may leave room to others."""
        self._drop_if_unwanted(replica, at_s)
        self.look_again(replica.place)

    def _look_at(self, replica: Replica, at_s: float) -> None:
        """Somebody has come to wait for it, or for what a device waits for: he may not have to, or may not want to."""
        if replica.state is State.DRAINING and replica.leases:
            self._refuse_impatient(replica, books.going(replica), at_s)
        self.look_again(replica.place)
        awaited = self._awaited(replica)
        if awaited is not None:
            self._look_at(awaited, at_s)

    def _awaited(self, replica: Replica) -> Replica | None:
        """The host's replica that a device's waits for."""
        ticket = self._ledger.promotions.ticket_of(replica)
        return None if ticket is None else self._ledger.waiters.by_ticket.get(ticket)

    def _drop_if_unwanted(self, replica: Replica, at_s: float) -> None:
        """A queued replica nobody waits for leaves the queue; a running fill is finished: the cache is persistent."""
        if replica.state is State.QUEUED and not replica.waiters:
            self._await_no_longer(replica, at_s)
            self.queues[replica.place].remove(replica)
            self._ledger.remove(replica, at_s, "last waiter gone")
            self._ledger.outbox.abandon(replica)
            if replica.place.tier is Tier.GPU:
                self.look_everywhere()  # what was kept for it on the host may go

    def _await_no_longer(self, replica: Replica, at_s: float) -> None:
        """A device's replica needs nothing of the host any more."""
        ticket = self._ledger.promotions.ticket_of(replica)
        if ticket is not None:
            self._ledger.promotions.end(ticket)
            self.leave(ticket, at_s)

    def _refuse_impatient(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        """Those with a deadline stay, also those who wait on a device for this replica; the others are told now."""
        for waiter in list(replica.waiters.values()):
            device = self._ledger.promotions.device_of(waiter)
            if device is not None:
                self._refuse_impatient(device, error, at_s)
            elif waiter.deadline_at_s is None:
                self._ledger.leave(waiter.ticket)
                self.refuse(waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

    def _refuse_all(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        for waiter in self._ledger.take(replica):
            self.refuse(waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

    # -- who gets room ---------------------------------------------------------------------------------------------

    def look_again(self, place: Place) -> None:
        """Something has changed there: room may have come free, or become too little."""
        self._unsettled[place] = None

    def look_everywhere(self) -> None:
        """The same for all places."""
        self._unsettled.update(dict.fromkeys(self.queues))

    def settle(self, at_s: float) -> None:
        """Decide who gets room, wherever something has changed, until nothing changes any more."""
        while self._unsettled:
            place = next(iter(self._unsettled))
            del self._unsettled[place]
            if self._ledger.room.working[place]:
                self._make_way(place, at_s)
            if self.queues[place]:
                self._admit(place, at_s)

    def _admit(self, place: Place, at_s: float) -> None:
        """Start queued fills in order of arrival, for as long as there is room or room can be made.

        An image whose size is still being measured holds nobody up; one that waits for room does.
        """
        for replica in list(self.queues[place]):
            if not self._know_size(replica, at_s):
                continue
            answer = self._make_room(replica, at_s)
            if answer is _Answer.WAITS:
                return
            if answer is _Answer.FITS:
                self._start_fill(replica, at_s)

    def _know_size(self, replica: Replica, at_s: float) -> bool:
        ledger = self._ledger
        source = ledger.shelf.source_of(replica)
        if source is not None:
            replica.nbytes = source.nbytes
            self._await_no_longer(replica, at_s)  # it may have come to lie elsewhere first
            return True
        host = host_for(ledger.room.capacities)
        if replica.place.tier is Tier.GPU and host is not None:
            self._bring_to(host, replica, at_s)
            return False
        if not replica.measured and not replica.measuring:
            replica.measuring = True
            ledger.outbox.measure(replica)
        return replica.measured

    def _bring_to(self, host: Place, replica: Replica, at_s: float) -> None:
        """Wait for the image at a host place on behalf of a device, where nothing can be converted."""
        ledger = self._ledger
        if ledger.promotions.ticket_of(replica) is None:
            there = ledger.shelf.find(replica.key, host)
            brought = replica.keep_alive_s if host == CPU else None  # what lies on disk takes no memory
            keep_alive_s = brought if there is None else there.keep_alive_s
            waiter = ledger.promotions.begin(replica, host)
            self.request(Requested(at_s=at_s, key=replica.key, place=host, waiter=waiter, keep_alive_s=keep_alive_s))

    def _make_room(self, replica: Replica, at_s: float) -> _Answer:
        """Evict what it needs; refuse those who will not wait, and everybody if it never fits."""
        room, everything = self._ledger.room, self._ledger.shelf.replicas.values()
        place, need = replica.place, room.need_of(replica)
        if room.least_need_of(replica) > room.capacities[place]:
            self._refuse_all(replica, books.too_large(room, replica), at_s)
            return _Answer.REFUSED
        if need <= room.free_bytes(place):
            return _Answer.FITS
        # What is promised to a device goes for who wants the room himself. If it went for another one that a device
        # waits for, each of the two would have the other made anew for as long as both wait.
        for_devices = all(self._ledger.promotions.device_of(waiter) for waiter in replica.waiters.values())
        spare = self._ledger.shelf.is_promised if for_devices else lambda _: False
        self._evict(room.victims(place, need, everything, spare=spare), at_s)
        if not room.is_coming(place, need, everything):
            self._refuse_impatient(replica, room.refusal(replica, everything), at_s)
        return _Answer.WAITS if replica.state is State.QUEUED else _Answer.REFUSED

    def _make_way(self, place: Place, at_s: float) -> None:
        """Those who read at a place need more beside their images than is left there: who is idle goes for it."""
        room = self._ledger.room
        if room.free_bytes(place) < 0:
            self._evict(room.victims(place, 0, self._ledger.shelf.replicas.values(), in_part=True), at_s)

    def _evict(self, victims: Iterable[Replica], at_s: float) -> None:
        for victim in victims:
            if not self._demote(victim, at_s):
                self._ledger.free(victim, at_s, "evicted for room", evicted=True)

    def _demote(self, victim: Replica, at_s: float) -> bool:
        """A device's image goes to the host first if it is not there and fits beside what is: True if it does."""
        ledger = self._ledger
        if victim.place.tier is not Tier.GPU or CPU not in ledger.room.capacities:
            return False
        if ledger.shelf.find(victim.key, CPU) is not None or victim.nbytes > ledger.room.free_bytes(CPU):
            return False
        if self.queues[CPU]:  # the room is theirs who wait for it
            return False
        host = self.enqueue(victim.key, CPU, at_s)
        host.nbytes, host.keep_alive_s = victim.nbytes, victim.keep_alive_s
        self._start_fill(host, at_s)
        ledger.retire(victim, at_s, "evicted for room, demoted to cpu")
        return True

    def _start_fill(self, replica: Replica, at_s: float) -> None:
        ledger = self._ledger
        source = ledger.shelf.source_of(replica)
        if source is not None:
            ledger.lend(source, replica)
        self.queues[replica.place].remove(replica)
        ledger.step(replica, State.FILLING, at_s, f"room found, source {replica.source or 'artifact'}")
        if replica.working_bytes:  # more of those who wait may read it than room was asked for
            self.look_again(replica.place)
        ledger.outbox.fill(replica)
