"""Promotions: devices that wait for an image to lie on the host, because nothing is converted on a device.

Kept here: on whose behalf residency itself waits for a host replica, under a ticket nobody outside knows. What follows
when that wait ends is decided by `Residency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.lease import Waiter
from trims.core.place import CPU, DISK

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def begin(self, replica: Replica, place: Place) -> Waiter:
        """Wait at a host place; returns who does."""
        self.by_ticket[-replica.generation] = (replica, place)
        return self.waiter(replica)

    def waiter(self, replica: Replica) -> Waiter:
        """He who waits on the replica's behalf, for as long as the most patient of those who wait for it now."""
        deadlines = [waiter.deadline_at_s for waiter in replica.waiters.values()]
        patience = None if None in deadlines else max((each for each in deadlines if each is not None), default=None)
        return Waiter(-replica.generation, None, wants_lease=False, deadline_at_s=patience)

    def is_own(self, waiter: Waiter) -> bool:
        """True for a waiter that `begin` made, and whom nobody outside knows."""
        return waiter.ticket < 0

    def end(self, waiter: Waiter) -> tuple[Replica, Place] | None:
        """The wait is over; returns whose it was and where, None if it was forgotten meanwhile."""
        return self.by_ticket.pop(waiter.ticket, None)

    def forget(self, replica: Replica) -> None:
        """The device replica is wanted no longer; the host goes on."""
        self.by_ticket.pop(-replica.generation, None)

    def is_waiting(self, replica: Replica) -> bool:
        """True while the host is waited for on this replica's behalf."""
        return -replica.generation in self.by_ticket


def host_for(capacities: Mapping[Place, int], after: Place | None = None) -> Place | None:
    """The best host place there is, or the best after one that would not do; None if there is none left."""
    hosts = [place for place in _HOSTS if place in capacities]
    if after is not None:
        hosts = hosts[hosts.index(after) + 1 :]
    return hosts[0] if hosts else None
