"""The ledger: everything residency keeps, and the steps by which it changes. Each step leaves the books consistent.

A replica's state changes here and nowhere else. What brings a step about is decided elsewhere: which replica gets room
by `Admission`, what follows from an event by `Residency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import InternalError
from trims.core.lease import Lease, Leases
from trims.core.place import TierKind
from trims.core.policy.capacity import Capacity
from trims.core.policy.capacity_errors import why_in_use
from trims.core.policy.demand import Demand
from trims.core.policy.eviction import Usage
from trims.core.policy.quotas import Tenancy
from trims.core.replica import CHARGED, LEASABLE, ReplicaId, State
from trims.core.residency.background import BackgroundFills
from trims.core.residency.events import Grant
from trims.core.residency.fill_failures import Failures
from trims.core.residency.instructions import Instructions
from trims.core.residency.promotion import Promotions
from trims.core.residency.replica_table import ReplicaTable
from trims.core.residency.timer_heap import TimerHeap

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trims.core.lease import Waiter
    from trims.core.place import Place
    from trims.core.policy.eviction import Policy
    from trims.core.policy.quotas import Quota
    from trims.core.replica import Replica


# All waiters of a daemon, by ticket and by session.


class Waiters:
    """Index of waiters and what they wait for. A replica knows its waiters; a ticket leads to the replica.

    Attributes:
        by_ticket: The replica each waits for.
        sessions: Tickets of each session, in order of arrival.
    """

    def __init__(self) -> None:
        self.by_ticket: dict[int, Replica] = {}
        self.sessions: dict[int, dict[int, None]] = {}

    def join(self, replica: Replica, waiter: Waiter) -> None:
        """Add a waiter to those of a replica, at the end."""
        replica.waiters[waiter.ticket] = waiter
        self.by_ticket[waiter.ticket] = replica
        if waiter.is_impatient:
            replica.impatient[waiter.ticket] = waiter
        if waiter.is_promotion:
            replica.promotions += 1
        if waiter.modest:
            replica.modest += 1
        replica.tenants[waiter.tenant] = replica.tenants.get(waiter.tenant, 0) + 1
        if waiter.session is not None:
            self.sessions.setdefault(waiter.session, {})[waiter.ticket] = None

    def leave(self, ticket: int) -> tuple[Replica, Waiter] | None:
        """Remove a waiter. Return it and what it waited for; None if it did not wait."""
        replica = self.by_ticket.pop(ticket, None)
        if replica is None:
            return None
        waiter = replica.waiters.pop(ticket)
        replica.impatient.pop(ticket, None)
        if waiter.is_promotion:
            replica.promotions -= 1
        if waiter.modest:
            replica.modest -= 1
        replica.tenants[waiter.tenant] -= 1
        if not replica.tenants[waiter.tenant]:
            del replica.tenants[waiter.tenant]
        if waiter.session is not None:
            self._forget(waiter.session, ticket)
        return replica, waiter

    def _forget(self, session: int, ticket: int) -> None:
        tickets = self.sessions[session]
        del tickets[ticket]
        if not tickets:
            del self.sessions[session]

    def of_session(self, session: int) -> list[int]:
        """Tickets of a session, in order of arrival."""
        return list(self.sessions.get(session, ()))


class Ledger:
    """The books of one daemon.

    Args:
        capacities: Bytes each place may hold.
        policies: One for each place.

    Attributes:
        instructions: What has to be done about the event at hand.
        due: Deadlines of waiters (by ticket), ends of keep-alive (by replica), ends of reservations (by place).
        changed_places: Where bytes count as something else since `Admission` decided last.
        changed_keys: Images that came to lie somewhere, or lie there no longer, since then.
    """

    def __init__(
        self,
        capacities: Mapping[Place, int],
        policies: Mapping[Place, Policy],
        reserves: Mapping[Place, int],
        units: Mapping[Place, int],
        peers: Collection[tuple[Place, Place]],
        *,
        first_lease: int,
        max_images: int,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        self.capacity = Capacity(capacities, policies, reserves, units, max_images)
        self.table = ReplicaTable(capacities, peers)
        self.leases = Leases(first_lease)
        self.waiters = Waiters()
        self.promotions = Promotions()
        self.tenancy = Tenancy(quotas)
        self.demand = Demand()
        self.failures = Failures()
        self.unawaited = BackgroundFills()
        self.instructions = Instructions()
        self.changed_places: dict[Place, None] = {}
        self.changed_keys: dict[str, None] = {}
        self.due: TimerHeap[int | ReplicaId | Place] = TimerHeap(self._is_due)
        self._has_devices = any(place.tier is TierKind.GPU for place in capacities)

    # -- states and bytes ------------------------------------------------------------------------------------------

    def step(self, replica: Replica, to: State, at_s: float, why: str) -> None:
        """Change a replica's state. Raises InvalidTransitionError with its history if the table has no such step."""
        old = replica.state
        replica.step(to, at_s, why)
        if to not in LEASABLE and replica.leases:
            raise InternalError(f"{replica.key[:16]} at {replica.place} went to {to.value} with leases")
        if old in CHARGED or to in CHARGED:
            self.recount(replica)
        if len(self.table.by_key[replica.key]) > 1:
            self._siblings_changed(replica, sealed=State.SEALED in (old, to))
        if State.FILLING in (old, to):
            for waiter in replica.waiters.values():
                self._count_reader(replica, waiter.reader, 1 if to is State.FILLING else -1)
        if old in (State.QUEUED, State.FILLING):
            self.unawaited.end(replica)
        self.instructions.changed(replica, old, at_s, why)

    def recount(self, replica: Replica) -> None:
        """Count a replica's bytes as what they are now."""
        promised = self._has_devices and replica.state is State.SEALED and self.table.is_promised(replica)
        if self.capacity.recount(replica, promised=promised):
            self.changed_places[replica.place] = None
        if replica.payer is not None:
            self.tenancy.recount(replica)

    def _siblings_changed(self, replica: Replica, *, sealed: bool) -> None:
        """Note that an image's replica changed: the other replicas may have to be filled from another source now."""
        if sealed:
            self.changed_keys[replica.key] = None
        for sibling in self.table.by_key[replica.key].values() if self._has_devices else ():
            if sibling is not replica and sibling.state is State.SEALED:
                self.recount(sibling)

    def touch(self, replica: Replica, at_s: float) -> None:
        """Begin the replica's keep-alive again: it was used just now."""
        self._begin_keep_alive(replica, at_s)
        self.recount(replica)

    def seal(self, replica: Replica, at_s: float, why: str) -> None:
        """Mark the replica sealed: its bytes are there, and its keep-alive begins."""
        replica.filled_at_s = at_s
        self._begin_keep_alive(replica, at_s)
        self.capacity.used(replica)
        self.step(replica, State.SEALED, at_s, why)

    # -- time ------------------------------------------------------------------------------------------------------

    def _begin_keep_alive(self, replica: Replica, at_s: float) -> None:
        replica.last_used_s = at_s
        lazy = replica.keep_alive_s is None or (replica.key, replica.place) in self.capacity.pins
        self.keep_until(replica, None if replica.held or lazy else at_s + (replica.keep_alive_s or 0.0))

    def keep_until(self, replica: Replica, at_s: float | None) -> None:
        """Set when keep-alive ends. A replica has one entry in `due` at a time, or one more when it comes earlier."""
        replica.keep_until_s = at_s
        if at_s is not None and (replica.alarm_s is None or at_s < replica.alarm_s):
            replica.alarm_s = at_s
            self.due.add(at_s, replica.id)

    def _is_due(self, at_s: float, item: int | ReplicaId | Place) -> bool:
        if isinstance(item, int):
            return item in self.waiters.by_ticket
        if isinstance(item, ReplicaId):
            replica = self.table.find(item.key, item.place)
            return replica is not None and replica.generation == item.generation and replica.alarm_s == at_s
        return True

    # -- leases ----------------------------------------------------------------------------------------------------

    def grant(self, replica: Replica, waiter: Waiter, session: int, at_s: float, *, warm: bool) -> None:
        """Grant a lease to the waiter's session. This is what a warm open waits for: few calls, on purpose."""
        key, place, number = replica.key, replica.place, next(self.leases.numbers)
        lease = self.leases.by_number[number] = Lease(number, session, key, place, replica.generation)
        self.leases.sessions.setdefault(session, {})[number] = None
        replica.uses += 1
        replica.last_used_s = at_s
        replica.leases[number] = None
        if waiter.tenant is not None:
            self.tenancy.leased(lease, waiter.tenant, replica)
        if session in replica.readers:
            replica.readers[session] += 1
        else:
            self._count_reader(replica, session, 1)
        if len(replica.leases) == 1:  # with leases before, neither its bytes nor its keep-alive changes
            self.touch(replica, at_s)
        usage = Usage(key, replica.nbytes or 1, replica.cost_s, replica.uses, replica.filled_at_s, at_s)
        self.capacity.at[place].policy.used(usage)
        self.instructions.written.append(Grant(ticket=waiter.ticket, lease=lease, nbytes=replica.nbytes, warm=warm))

    def end_lease(self, lease: Lease, at_s: float) -> Replica:
        """End a lease that the session has given back. Return the replica it was for."""
        replica = self.table.replicas[lease.key, lease.place]
        self._strike(lease, replica)
        self._lease_changed(replica, at_s, others=bool(replica.leases))
        self.release(replica, at_s)
        return replica

    def _lease_changed(self, replica: Replica, at_s: float, *, others: bool) -> None:
        """Update a replica whose lease began or ended.

        If the replica has other leases, neither its bytes nor its keep-alive changed.
        """
        if others:
            replica.last_used_s = at_s
        else:
            self.touch(replica, at_s)

    def lose(self, replica: Replica, at_s: float, why: str) -> None:
        """End the leases of a replica whose memory is gone, and notify each session that held one."""
        for number in list(replica.leases):
            lease = self.leases.by_number[number]
            self._strike(lease, replica)
            self.instructions.lost(lease, why)
        self.recount(replica)
        if replica.state is State.SEALED:
            self.retire(replica, at_s, why)
        else:
            self.release(replica, at_s)

    def _strike(self, lease: Lease, replica: Replica) -> None:
        self.leases.end(lease)
        self.tenancy.returned(lease, replica)
        del replica.leases[lease.number]
        self._count_reader(replica, lease.session, -1)

    # -- waiters ---------------------------------------------------------------------------------------------------

    def join(self, replica: Replica, waiter: Waiter) -> None:
        """Add a waiter to those of a replica."""
        self.waiters.join(replica, waiter)
        if waiter.deadline_at_s is not None:
            self.due.add(waiter.deadline_at_s, waiter.ticket)
        if replica.state is State.FILLING:
            self._count_reader(replica, waiter.reader, 1)

    def leave(self, ticket: int) -> Replica | None:
        """Remove a waiter. Return the replica it waited for, None if it waited for none."""
        left = self.waiters.leave(ticket)
        if left is None:
            return None
        replica, waiter = left
        if replica.state is State.FILLING:
            self._count_reader(replica, waiter.reader, -1)
        return replica

    def take(self, replica: Replica) -> list[Waiter]:
        """Remove all waiters of the replica; return them in order of arrival."""
        taken = list(replica.waiters.values())
        for waiter in taken:
            self.leave(waiter.ticket)
        return taken

    def expect_work(self, replica: Replica, nbytes: int) -> None:
        """Record that each session that reads the replica needs `nbytes` on the device beside it."""
        books = self.capacity.at[replica.place]
        books.workspace_bytes += (nbytes - replica.workspace_bytes) * len(replica.readers)
        replica.workspace_bytes = nbytes
        self.changed_places[replica.place] = None

    def _count_reader(self, replica: Replica, session: int | None, leases: int) -> None:
        """Count `leases` more of a session, held or waited for.

        Its workspace counts once, however many leases it has.
        """
        if session is None:
            return
        books, before = self.capacity.at[replica.place], replica.readers.get(session, 0)
        replica.readers[session] = before + leases
        if before == 0:
            books.workspace_bytes += replica.workspace_bytes
        elif before + leases == 0:
            del replica.readers[session]
            books.workspace_bytes -= replica.workspace_bytes
        if replica.workspace_bytes:
            self.changed_places[replica.place] = None

    def raise_priority(self, replica: Replica) -> None:
        """Make a fill as fast as can be: a request waits for it, or for room that it keeps. Idempotent."""
        if self.unawaited.end(replica):
            self.instructions.raise_priority(replica)

    # -- copies ----------------------------------------------------------------------------------------------------

    def lend(self, source: Replica, replica: Replica) -> None:
        """Record that a fill reads from `source`: the internal lease of a promotion."""
        source.borrowers.add((replica.place, replica.generation))
        replica.source = source.place
        self.recount(source)

    def return_source(self, replica: Replica, at_s: float) -> None:
        """Give the source of a fill back, which is over. What waited for the source to be free may happen now."""
        source = self.table.find(replica.key, replica.source) if replica.source else None
        replica.source = None
        if source is not None:
            source.borrowers.discard((replica.place, replica.generation))
            self.touch(source, at_s)
            self.release(source, at_s)

    # -- leaving ---------------------------------------------------------------------------------------------------

    def release(self, replica: Replica, at_s: float) -> None:
        """Free a replica that waits for that, if the lease or copy that has ended was the last."""
        if replica.held:
            return
        if replica.state is State.DRAINING:
            self.free(replica, at_s, "last lease closed", evicted=False)
        elif replica.keep_alive_s == 0 and self.evictable(replica) and not self.table.is_promised(replica):
            self.free(replica, at_s, "eager reclaim", evicted=False)

    def evictable(self, replica: Replica) -> bool:
        """Return whether nothing holds the replica and it is not pinned."""
        pinned = (replica.key, replica.place) in self.capacity.pins
        return replica.state is State.SEALED and not replica.held and not pinned

    def retire(self, replica: Replica, at_s: float, why: str) -> None:
        """Grant no new lease of the replica; free it after the last one."""
        if replica.held:
            self.keep_until(replica, None)
            self.step(replica, State.DRAINING, at_s, why)
        else:
            self.free(replica, at_s, why, evicted=False)

    def free(self, replica: Replica, at_s: float, why: str, *, evicted: bool) -> None:
        """Have the replica's memory given back. Raises InternalError if a lease or a copy holds it."""
        if replica.held:
            raise InternalError(f"{replica.key[:16]} at {replica.place} was to be freed, and {why_in_use(replica)}")
        self.keep_until(replica, None)
        self.step(replica, State.FREEING, at_s, why)
        self.capacity.leaves(replica, evicted=evicted)
        self.instructions.free(replica, evicted=evicted)

    def remove(self, replica: Replica, at_s: float, why: str) -> None:
        """Take the replica out of the ledger."""
        self.capacity.claim(replica, 0)
        self.step(replica, State.ABSENT, at_s, why)
        self.table.remove(replica)
