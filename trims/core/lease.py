"""Records of readers and waiters: a lease is a right to read, a waiter is a request that is not answered yet."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from trims.core.records import record

if TYPE_CHECKING:
    from trims.core.place import Place


@record
class Lease:
    """A session's right to read one replica.

    Attributes:
        number: Unique among the daemons that share a runtime folder, not only in the life of one.
        session: The session that holds it; the lease ends with it at the latest.
    """

    number: int
    session: int
    key: str
    place: Place
    generation: int


@record
class Waiter:
    """A request that waits for a replica.

    Attributes:
        ticket: Chosen by the store; comes back in the answer. Negative for a promotion.
        session: The asking session, or None for a request without one (a prefetch, the control door, the store).
        wants_lease: Whether it is an open; if not, it only wants the replica there.
        deadline_at_s: Clock time after which the answer is an error, or None. A waiter without a deadline is
            *impatient*: it waits for a load to finish but not for leases of others to end.
        internal: The store asks for its own sake (keeping an image on disk, loading again what a device lost): it is
            served while the daemon drains.
        modest: Whether it can be served at another place of the host as well: nothing that is worth more leaves memory
            for it, and it does not wait for leases of others to end.
        tenant: Tenant that asks; None for the daemon's own user, and for residency itself.
        avoids: A device that the session cannot use just now; any other one is better.
        others: Devices that can serve it instead, best first, if it asked for any; None if it named one, or the host.
    """

    ticket: int
    session: int | None
    wants_lease: bool
    deadline_at_s: float | None
    internal: bool = False
    modest: bool = False
    tenant: str | None = None
    avoids: Place | None = None
    others: tuple[Place, ...] | None = None

    @property
    def reader(self) -> int | None:
        """Return the session that will read the replica; None if none will."""
        return self.session if self.wants_lease else None

    @property
    def is_promotion(self) -> bool:
        """Return whether residency itself waits: on the host for a device, or for an image that has earned memory."""
        return self.ticket < 0

    @property
    def is_impatient(self) -> bool:
        """Return whether the waiter must be refused rather than wait for leases of other sessions."""
        return self.modest or (self.deadline_at_s is None and self.ticket >= 0)


class Leases:
    """All leases of a daemon, by number and by session.

    Args:
        first: Number of the first lease. Each daemon begins elsewhere, so that a client that gives back a lease of a
            dead daemon never names one of the next.

    Attributes:
        numbers: Numbers of the leases to come; each is given once.
        by_number: All leases. `Ledger.grant` writes a new one here and in `sessions`.
        sessions: Numbers of the leases of each session, oldest first.
    """

    def __init__(self, first: int = 1) -> None:
        self.by_number: dict[int, Lease] = {}
        self.sessions: dict[int, dict[int, None]] = {}
        self.numbers = itertools.count(first)

    def end(self, lease: Lease) -> None:
        """Take the lease out of the books."""
        del self.by_number[lease.number]
        held = self.sessions[lease.session]
        del held[lease.number]
        if not held:
            del self.sessions[lease.session]

    def of_session(self, session: int) -> list[Lease]:
        """Leases of a session, oldest first."""
        return [self.by_number[number] for number in self.sessions.get(session, ())]
