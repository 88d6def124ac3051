"""The ledger: everything residency keeps, and the steps it is kept by. Each step leaves the books consistent.

A replica's state changes here and nowhere else. What brings a step about is decided elsewhere: who gets room by
`Admission`, what follows from an event by `Residency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core import books
from trims.core.errors import InternalError
from trims.core.lease import Leases, Waiters
from trims.core.outbox import Outbox
from trims.core.promotion import Promotions
from trims.core.replica import LEASABLE, State
from trims.core.room import Room
from trims.core.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trims.core.lease import Lease, Waiter
    from trims.core.place import Place
    from trims.core.policy import Policy
    from trims.core.replica import Replica


class Ledger:
    """The books of one daemon.

    Args:
        capacities: Bytes each place may hold.
        policies: One for each place.
        reserves: See `Room`.
        units: See `Room`.
        peers: See `Shelf`.

    Attributes:
        outbox: What has to be done about the event at hand; `Residency` gives each event a new one.
    """

    def __init__(
        self,
        capacities: Mapping[Place, int],
        policies: Mapping[Place, Policy],
        reserves: Mapping[Place, int],
        units: Mapping[Place, int],
        peers: Collection[tuple[Place, Place]],
    ) -> None:
        self.room = Room(capacities, policies, reserves, units)
        self.shelf = Shelf(peers)
        self.leases = Leases()
        self.waiters = Waiters()
        self.promotions = Promotions()
        self.outbox = Outbox()

    def step(self, replica: Replica, to: State, at_s: float, why: str) -> None:
        """Change a replica's state. Raises InvalidTransitionError with its story if the table has no such step."""
        old = replica.state
        replica.step(to, at_s, why)
        self.room.moved(replica, old)
        if State.FILLING in (old, to):
            for waiter in replica.waiters.values():
                self._count(replica, waiter.reader, 1 if to is State.FILLING else -1)
        if to not in LEASABLE and replica.leases:
            raise InternalError(f"{replica.key[:16]} at {replica.place} went to {to.value} with leases")
        self.outbox.changed(replica, old, at_s, why)

    def touch(self, replica: Replica, at_s: float) -> None:
        """It was used just now: keep-alive begins anew when nobody holds it."""
        replica.last_used_s = at_s
        lazy = replica.keep_alive_s is None or (replica.key, replica.place) in self.room.pins
        replica.keep_until_s = None if replica.held or lazy else at_s + (replica.keep_alive_s or 0.0)

    def seal(self, replica: Replica, at_s: float, why: str) -> None:
        """Its bytes are there."""
        replica.filled_at_s = at_s
        self.step(replica, State.SEALED, at_s, why)
        self.room.used(replica)
        self.touch(replica, at_s)

    def grant(self, replica: Replica, waiter: Waiter, session: int, at_s: float, *, warm: bool) -> None:
        """The waiter's session may read it from now on."""
        lease = self.leases.grant(session, replica.key, replica.place, replica.generation)
        replica.leases.add(lease.number)
        self._count(replica, session, 1)
        replica.uses += 1
        self.touch(replica, at_s)
        self.room.used(replica)
        self.outbox.grant(waiter, replica, lease, warm=warm)

    def end_lease(self, lease: Lease, at_s: float) -> Replica:
        """The session reads it no longer; returns what it read."""
        replica = self.shelf.replicas[lease.key, lease.place]
        self._strike(lease, replica)
        self.touch(replica, at_s)
        self.release(replica, at_s)
        return replica

    def lose(self, replica: Replica, at_s: float, why: str) -> None:
        """Its memory is gone: its leases are for nothing, and whoever holds one is told."""
        for number in sorted(replica.leases):
            lease = self.leases.by_number[number]
            self._strike(lease, replica)
            self.outbox.lost(lease, why)
        if replica.state is State.SEALED:
            self.retire(replica, at_s, why)
        else:
            self.release(replica, at_s)

    def _strike(self, lease: Lease, replica: Replica) -> None:
        self.leases.end(lease)
        replica.leases.discard(lease.number)
        self._count(replica, lease.session, -1)

    def join(self, replica: Replica, waiter: Waiter) -> None:
        """One more waits for it, behind those who do already."""
        self.waiters.join(replica, waiter)
        if replica.state is State.FILLING:
            self._count(replica, waiter.reader, 1)

    def leave(self, ticket: int) -> Replica | None:
        """One waits no longer; returns what he waited for, None if he did not wait."""
        left = self.waiters.leave(ticket)
        if left is None:
            return None
        replica, waiter = left
        if replica.state is State.FILLING:
            self._count(replica, waiter.reader, -1)
        return replica

    def take(self, replica: Replica) -> list[Waiter]:
        """Nobody waits for it any longer; returns who did, in order of arrival."""
        taken = list(replica.waiters.values())
        for waiter in taken:
            self.leave(waiter.ticket)
        return taken

    def expect_work(self, replica: Replica, nbytes: int) -> None:
        """Each session that reads it needs so much on the device beside it."""
        self.room.working[replica.place] += (nbytes - replica.working_bytes) * len(replica.readers)
        replica.working_bytes = nbytes

    def _count(self, replica: Replica, session: int | None, leases: int) -> None:
        """A session has, or waits for, so many leases more. Its work is counted once, however many they are."""
        if session is None:
            return
        before = replica.readers.get(session, 0)
        replica.readers[session] = before + leases
        if before == 0:
            self.room.working[replica.place] += replica.working_bytes
        elif before + leases == 0:
            del replica.readers[session]
            self.room.working[replica.place] -= replica.working_bytes

    def lend(self, source: Replica, replica: Replica) -> None:
        """A fill reads from it: the internal lease of a promotion."""
        source.borrowers.add((replica.place, replica.generation))
        replica.source = source.place

    def return_source(self, replica: Replica, at_s: float) -> None:
        """The fill is over. Whatever waited for its source to be free may go now."""
        source = self.shelf.find(replica.key, replica.source) if replica.source else None
        replica.source = None
        if source is not None:
            source.borrowers.discard((replica.place, replica.generation))
            self.touch(source, at_s)
            self.release(source, at_s)

    def release(self, replica: Replica, at_s: float) -> None:
        """Somebody let go of it: if nobody holds it now, what waited for that happens."""
        if replica.held:
            return
        if replica.state is State.DRAINING:
            self.free(replica, at_s, "last lease closed", evicted=False)
        elif replica.keep_alive_s == 0 and self.room.evictable(replica) and not self.shelf.is_promised(replica):
            self.free(replica, at_s, "eager reclaim", evicted=False)

    def retire(self, replica: Replica, at_s: float, why: str) -> None:
        """No new lease; away with it after the last one."""
        if replica.held:
            self.step(replica, State.DRAINING, at_s, why)
            replica.keep_until_s = None
        else:
            self.free(replica, at_s, why, evicted=False)

    def free(self, replica: Replica, at_s: float, why: str, *, evicted: bool) -> None:
        """Have its memory given back. Raises InternalError if somebody holds it."""
        if replica.held:
            raise InternalError(
                f"{replica.key[:16]} at {replica.place} was to be freed under {books.why_in_use(replica)}"
            )
        self.step(replica, State.FREEING, at_s, why)
        replica.keep_until_s = None
        self.room.leaves(replica, evicted=evicted)
        self.outbox.free(replica, evicted=evicted)

    def remove(self, replica: Replica, at_s: float, why: str) -> None:
        """Take it out of the books."""
        self.step(replica, State.ABSENT, at_s, why)
        self.shelf.remove(replica)
