"""Promotions: replicas that residency itself waits for, under tickets of its own.

1. On behalf of a device, which waits for an image to lie on the host, because nothing is converted on a device.
2. For an image on disk that has earned a place in shared memory by its use.

What follows when such a wait ends is decided by `Admission`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.lease import Waiter
from trims.core.place import CPU, DISK

if TYPE_CHECKING:
    from collections.abc import Container

    from trims.core.place import Place
    from trims.core.replica import Replica

#: Copies behind the readers of files: they share disk and memory with what requests wait for.
_EARNED_AT_ONCE = 2
#: Places where sessions on the host read, best first; an image for a device is brought there.
HOSTS = (CPU, DISK)


class Promotions:
    """All promotions that run. Their tickets are negative; those of requests are not.

    Attributes:
        by_ticket: The device replica and the host place, by the ticket residency waits with there.
        earned: Tickets of images that are brought to shared memory because of their use.
        not_before_s: Clock time before which no other image is.
    """

    def __init__(self) -> None:
        self.by_ticket: dict[int, tuple[Replica, Place]] = {}
        self.earned: set[int] = set()
        self.not_before_s = 0.0

    def may_earn(self, at_s: float) -> bool:
        """Return whether one more image may be brought to shared memory because of its use."""
        return len(self.earned) < _EARNED_AT_ONCE and at_s >= self.not_before_s

    def begin_earned(self, replica: Replica, tenant: str | None) -> Waiter:
        """Wait for a replica in shared memory that use, at last by `tenant`, has earned; returns the waiter."""
        waiter = Waiter(-replica.generation, None, wants_lease=False, deadline_at_s=None, modest=True, tenant=tenant)
        self.earned.add(waiter.ticket)
        return waiter

    def end_earned(self, ticket: int, retry_at_s: float) -> None:
        """End a copy that use had earned: begin no other before that time. Idempotent."""
        if ticket in self.earned:
            self.earned.discard(ticket)
            self.not_before_s = retry_at_s

    def begin(self, replica: Replica, host: Place) -> Waiter:
        """Wait at a host place; returns the waiter. It has no deadline: the waiters at the device have theirs."""
        tenant = next(iter(replica.tenants), None)
        waiter = Waiter(-replica.generation, None, wants_lease=False, deadline_at_s=None, tenant=tenant)
        self.by_ticket[waiter.ticket] = (replica, host)
        return waiter

    def end(self, ticket: int) -> tuple[Replica, Place] | None:
        """End a wait. Return the device replica and the host place; None if it was not for a device."""
        self.earned.discard(ticket)
        return self.by_ticket.pop(ticket, None)

    def ticket_of(self, replica: Replica) -> int | None:
        """Return the ticket under which a host place is waited for on this replica's behalf; None if none is."""
        return -replica.generation if -replica.generation in self.by_ticket else None


def host_for(known: Container[Place], after: Place | None = None) -> Place | None:
    """Return the best place on the host; with `after`, the best one below that place. None if there is none."""
    hosts = [place for place in HOSTS if place in known]
    if after is not None:
        hosts = hosts[hosts.index(after) + 1 :]
    return hosts[0] if hosts else None
