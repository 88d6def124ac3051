"""Promotions: devices that wait for an image to lie on the host, because nothing is converted on a device.

Kept here: the device replica on whose behalf residency itself waits for a host replica, under a ticket of its own. What
follows when that wait ends is decided by `Admission`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.lease import Waiter
from trims.core.place import CPU, DISK

if TYPE_CHECKING:
    from collections.abc import Container

    from trims.core.place import Place
    from trims.core.replica import Replica

#: Where an image is brought for a device, best first.
_HOSTS = (CPU, DISK)


class Promotions:
    """Every device replica that waits for the host.

    Attributes:
        by_ticket: The device replica and the host place, by the ticket residency waits with there. Tickets are
            negative: askers' are not.
    """

    def __init__(self) -> None:
        self.by_ticket: dict[int, tuple[Replica, Place]] = {}

    def begin(self, replica: Replica, host: Place) -> Waiter:
        """Wait at a host place; returns the waiter. It has no deadline: the waiters at the device have theirs."""
        waiter = Waiter(-replica.generation, None, wants_lease=False, deadline_at_s=None)
        self.by_ticket[waiter.ticket] = (replica, host)
        return waiter

    def end(self, ticket: int) -> tuple[Replica, Place] | None:
        """The wait is over; returns the device replica and the host place, None if the ticket is no promotion's."""
        return self.by_ticket.pop(ticket, None)

    def ticket_of(self, replica: Replica) -> int | None:
        """The ticket under which a host place is waited for on this replica's behalf; None if none is."""
        return -replica.generation if -replica.generation in self.by_ticket else None

    def device_of(self, waiter: Waiter) -> Replica | None:
        """The device replica on whose behalf a waiter waits; None for any other waiter."""
        promotion = self.by_ticket.get(waiter.ticket)
        return None if promotion is None else promotion[0]


def host_for(known: Container[Place], after: Place | None = None) -> Place | None:
    """The best host place there is, or the best after one that would not do; None if there is none left."""
    hosts = [place for place in _HOSTS if place in known]
    if after is not None:
        hosts = hosts[hosts.index(after) + 1 :]
    return hosts[0] if hosts else None
