"""Who reads and who waits: leases, and the waiters that will become leases."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.core.place import Place
    from trims.core.replica import Replica


@dataclass(frozen=True, slots=True)
class Lease:
    """A session's right to read one replica.

    Attributes:
        number: Unique in the life of a daemon.
        session: The session that holds it; the lease ends with it at the latest.
        key: Image key of the replica.
        place: Where the replica lies.
        generation: Which incarnation of the replica.
    """

    number: int
    session: int
    key: str
    place: Place
    generation: int


@dataclass(frozen=True, slots=True)
class Waiter:
    """Somebody who waits for a replica.

    Attributes:
        ticket: Chosen by the asker; comes back in the answer.
        session: The asking session, or None for work of the daemon itself.
        wants_lease: True for an open, False for a prefetch or a pin.
        deadline_at_s: Clock time after which the answer is an error, or None. Without a deadline a waiter waits
            for a load to finish but not for leases of others to end.
    """

    ticket: int
    session: int | None
    wants_lease: bool
    deadline_at_s: float | None

    @property
    def reader(self) -> int | None:
        """The session that will read the replica; None if nobody will."""
        return self.session if self.wants_lease else None


class Leases:
    """All leases of a daemon, by number and by session."""

    def __init__(self) -> None:
        self.by_number: dict[int, Lease] = {}
        self._by_session: dict[int, set[int]] = {}
        self._numbers = itertools.count(1)

    def grant(self, session: int, key: str, place: Place, generation: int) -> Lease:
        """A new lease with a number of its own."""
        lease = Lease(next(self._numbers), session, key, place, generation)
        self.by_number[lease.number] = lease
        self._by_session.setdefault(session, set()).add(lease.number)
        return lease

    def end(self, lease: Lease) -> None:
        """Take the lease out of the books."""
        del self.by_number[lease.number]
        held = self._by_session[lease.session]
        held.discard(lease.number)
        if not held:
            del self._by_session[lease.session]

    def of_session(self, session: int) -> list[Lease]:
        """What a session holds, oldest first."""
        return [self.by_number[number] for number in sorted(self._by_session.get(session, ()))]

    def sessions(self) -> dict[int, frozenset[int]]:
        """Numbers by session, for checking."""
        return {session: frozenset(numbers) for session, numbers in self._by_session.items()}


class Waiters:
    """Everybody who waits for a replica. A replica knows its waiters; a ticket leads to the replica.

    Attributes:
        by_ticket: The replica each waits for.
    """

    def __init__(self) -> None:
        self.by_ticket: dict[int, Replica] = {}

    def join(self, replica: Replica, waiter: Waiter) -> None:
        """One more waits for the replica, behind those who do already."""
        replica.waiters[waiter.ticket] = waiter
        self.by_ticket[waiter.ticket] = replica

    def leave(self, ticket: int) -> tuple[Replica, Waiter] | None:
        """One waits no longer; returns what he waited for and who he was, None if he did not wait."""
        replica = self.by_ticket.pop(ticket, None)
        return None if replica is None else (replica, replica.waiters.pop(ticket))

    def of_session(self, session: int) -> list[int]:
        """Tickets of a session, in order of arrival."""
        return [ticket for ticket, replica in self.by_ticket.items() if replica.waiters[ticket].session == session]
