"""Admission: from a request to a fill. Who waits, who gets room, in which order, and what has to go for it.

Room is given in order of arrival; an image that waits for room holds back those behind it, or a large one would starve
behind small ones. Not covered: what happens once a fill runs (`Residency`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core import books
from trims.core.errors import DeadlineError, InUseError, TooLargeError, TrimsError
from trims.core.events import Requested
from trims.core.place import CPU, Tier
from trims.core.promotion import host_for
from trims.core.replica import State

if TYPE_CHECKING:
    from trims.core.lease import Waiter
    from trims.core.ledger import Ledger
    from trims.core.place import Place
    from trims.core.replica import Replica


class Admission:
    """The queues of all places.

    Args:
        ledger: The books.

    Attributes:
        queues: Replicas that wait for room, in order of arrival.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
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
        had_bytes = replica.working_bytes
        if event.working_bytes is not None and replica.place.tier is Tier.GPU:
            ledger.expect_work(replica, event.working_bytes)
        if replica.state is State.SEALED:
            self.serve(replica, event.waiter, event.at_s, warm=True)
        elif replica.state is State.DRAINING and event.waiter.deadline_at_s is None:
            error = InUseError(
                "the model is being evicted and waits for its last reader; set a deadline to wait for it"
            )
            self.refuse(event.waiter, error, event.at_s)
        else:
            ledger.waiters.join(replica, event.waiter)
            if ledger.promotions.is_waiting(replica):
                ledger.waiters.renew(ledger.promotions.waiter(replica))
            self.admit(event.place, event.at_s)
        if replica.working_bytes < had_bytes:
            self.admit(event.place, event.at_s)

    def enqueue(self, key: str, place: Place, at_s: float) -> Replica:
        """A new replica at the end of its place's queue."""
        replica = self._ledger.shelf.add(key, place)
        self.queues[place].append(replica)
        self._ledger.step(replica, State.QUEUED, at_s, "first waiter")
        return replica

    def serve(self, replica: Replica, waiter: Waiter, at_s: float, *, warm: bool) -> None:
        """Give a waiter what he waited for."""
        ledger = self._ledger
        if waiter.wants_lease and waiter.session is not None:
            ledger.grant(replica, waiter, waiter.session, at_s, warm=warm)
            self.make_way(replica.place, at_s)
            return
        ledger.touch(replica, at_s)
        if not ledger.promotions.is_own(waiter):
            ledger.outbox.ready(waiter, replica)
        ledger.promotions.end(waiter)

    def refuse(self, waiter: Waiter, error: TrimsError, at_s: float) -> None:
        """Tell a waiter; one of our own, who waited for the host on a device's behalf, passes it on."""
        ledger = self._ledger
        if not ledger.promotions.is_own(waiter):
            ledger.outbox.refuse(waiter, error)
            return
        promotion = ledger.promotions.end(waiter)
        if promotion is None:
            return  # nobody wants it on the device any more
        replica, host = promotion
        another = host_for(ledger.room.capacities, after=host) if isinstance(error, TooLargeError) else None
        if another is None:
            self._refuse_all(replica, error, at_s)
        else:
            self._bring_to(another, replica, at_s)

    def leave(self, ticket: int, at_s: float) -> None:
        """A waiter gave up."""
        replica = self._ledger.waiters.leave(ticket)
        if replica is not None:
            self._drop_if_unwanted(replica, at_s)

    def expire(self, replica: Replica, waiter: Waiter, at_s: float) -> None:
        """A waiter's deadline has passed: tell him what it was that took so long."""
        ledger = self._ledger
        ledger.waiters.leave(waiter.ticket)
        if replica.state is State.QUEUED and ledger.room.need_of(replica) > ledger.room.free_bytes(replica.place):
            self.refuse(waiter, ledger.room.refusal(replica, ledger.shelf.replicas.values()), at_s)
        else:
            self.refuse(waiter, DeadlineError(books.why_late(replica)), at_s)
        self._drop_if_unwanted(replica, at_s)

    def _drop_if_unwanted(self, replica: Replica, at_s: float) -> None:
        """A queued replica nobody waits for leaves the queue; a running fill is finished: the cache is persistent."""
        if replica.state is State.QUEUED and not replica.waiters:
            self.queues[replica.place].remove(replica)
            self._ledger.remove(replica, at_s, "last waiter gone")
            self._ledger.outbox.abandon(replica)
            self.admit(replica.place, at_s)

    def _refuse_impatient(self, replica: Replica, at_s: float) -> None:
        """Those with a deadline stay in the queue; the others get the numbers now."""
        ledger = self._ledger
        error = ledger.room.refusal(replica, ledger.shelf.replicas.values())
        for waiter in list(replica.waiters.values()):
            if waiter.deadline_at_s is None:
                ledger.waiters.leave(waiter.ticket)
                self.refuse(waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

    def _refuse_all(self, replica: Replica, error: TrimsError, at_s: float) -> None:
        for waiter in self._ledger.waiters.take(replica):
            self.refuse(waiter, error, at_s)
        self._drop_if_unwanted(replica, at_s)

    # -- who gets room ---------------------------------------------------------------------------------------------

    def admit(self, place: Place, at_s: float) -> None:
        """Start queued fills in order of arrival, for as long as there is room or room can be made.

        An image whose size is still being measured holds nobody up; one that waits for room does.

        It is called within itself: an image for a device makes a request at the host, which may be served and fill
        the device's replica before the outer call goes on. So the outer call walks a copy of the queue and looks at
        each replica's state anew.
        """
        for replica in list(self.queues[place]):
            if replica.state is not State.QUEUED or not self._know_size(replica, at_s):
                continue
            if not self._make_room(replica, at_s):
                return
            if replica.state is State.QUEUED:
                self._start_fill(replica, at_s)

    def admit_everywhere(self, at_s: float) -> None:
        """The same for all places, after something that may have made room anywhere."""
        for place in self.queues:
            self.admit(place, at_s)

    def _know_size(self, replica: Replica, at_s: float) -> bool:
        ledger = self._ledger
        source = ledger.shelf.source_of(replica)
        if source is not None:
            replica.nbytes = source.nbytes
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
        if not ledger.promotions.is_waiting(replica):
            there = ledger.shelf.find(replica.key, host)
            keep_alive_s = there.keep_alive_s if there is not None else None
            waiter = ledger.promotions.begin(replica, host)
            self.request(Requested(at_s=at_s, key=replica.key, place=host, waiter=waiter, keep_alive_s=keep_alive_s))

    def _make_room(self, replica: Replica, at_s: float) -> bool:
        """True if the replica fits now, or is not wanted any more. Evicts what it needs; refuses who will not wait."""
        room, everything = self._ledger.room, self._ledger.shelf.replicas.values()
        place, need = replica.place, room.need_of(replica)
        if room.least_need_of(replica) > room.capacities[place]:
            self._refuse_all(replica, books.too_large(room, replica), at_s)
            return True
        if need <= room.free_bytes(place):
            return True
        self._evict_for(place, need, at_s)
        if room.is_coming(place, need, everything):
            return False
        self._refuse_impatient(replica, at_s)
        return replica.state is State.ABSENT

    def make_way(self, place: Place, at_s: float) -> None:
        """Those who read at a place need more beside their images than is left there: who is idle goes for it."""
        if self._ledger.room.free_bytes(place) < 0:
            self._evict_for(place, 0, at_s, in_part=True)

    def _evict_for(self, place: Place, need: int, at_s: float, *, in_part: bool = False) -> None:
        everything = self._ledger.shelf.replicas.values()
        for victim in self._ledger.room.victims(place, need, everything, in_part=in_part):
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
        host.nbytes = victim.nbytes
        self._start_fill(host, at_s)
        ledger.retire(victim, at_s, "evicted for room, demoted to cpu")
        return True

    def _start_fill(self, replica: Replica, at_s: float) -> None:
        ledger = self._ledger
        source = ledger.shelf.source_of(replica)
        if source is not None:
            ledger.lend(source, replica)
        wanted = any(waiter.wants_lease and waiter.session is not None for waiter in replica.waiters.values())
        ledger.foresee(replica, reader=wanted)
        ledger.promotions.forget(replica)  # it may have come to lie at another host place first
        self.queues[replica.place].remove(replica)
        ledger.step(replica, State.FILLING, at_s, f"room found, source {replica.source or 'artifact'}")
        ledger.outbox.fill(replica)
