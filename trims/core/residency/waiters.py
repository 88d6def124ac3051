"""All waiters of a daemon, by ticket and by session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.core.lease import Waiter
    from trims.core.replica import Replica


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
