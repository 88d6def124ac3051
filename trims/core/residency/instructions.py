"""The outbox: the instructions that follow from one event, in order, each written from the replica it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.residency.events import (
    Abandon,
    Changed,
    Failed,
    Fill,
    Free,
    Hurry,
    Instruction,
    Lost,
    Measure,
    Ready,
    Refuse,
)

if TYPE_CHECKING:
    from trims.core.errors import TrimsError
    from trims.core.lease import Lease, Waiter
    from trims.core.replica import Replica, State


class Outbox:
    """Instructions of one event.

    Attributes:
        instructions: For the store, which carries them out in this order. `Residency` gives each event a new list.
    """

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    def ready(self, waiter: Waiter, replica: Replica) -> None:
        """Tell a waiter that wanted no lease that the replica is there."""
        ready = Ready(ticket=waiter.ticket, key=replica.key, place=replica.place, nbytes=replica.nbytes)
        self.instructions.append(ready)

    def refuse(self, waiter: Waiter, error: TrimsError) -> None:
        """The waiter gets the error."""
        self.instructions.append(Refuse(ticket=waiter.ticket, error=error))

    def measure(self, replica: Replica, *, behind: bool) -> None:
        """The replica's size must be known before there can be room for it; `behind` if no request waits for it."""
        measure = Measure(
            key=replica.key,
            place=replica.place,
            generation=replica.generation,
            measurement=replica.measuring,
            behind=behind,
            tenant=next(iter(replica.tenants), None),
        )
        self.instructions.append(measure)

    def abandon(self, replica: Replica) -> None:
        """The last waiter of the queued replica left."""
        self.instructions.append(Abandon(key=replica.key, place=replica.place, generation=replica.generation))

    def fill(self, replica: Replica, *, behind: bool) -> None:
        """There is room: fill the replica from its source; `behind` if no request waits for it."""
        fill = Fill(
            key=replica.key,
            place=replica.place,
            generation=replica.generation,
            source=replica.source,
            nbytes=replica.nbytes,
            behind=behind,
            tenant=next(iter(replica.tenants), None),
        )
        self.instructions.append(fill)

    def hurry(self, replica: Replica) -> None:
        """A request waits for it now."""
        self.instructions.append(Hurry(key=replica.key, place=replica.place, generation=replica.generation))

    def free(self, replica: Replica, *, evicted: bool) -> None:
        """The replica's memory goes back; `evicted` if it was chosen to make room."""
        free = Free(key=replica.key, place=replica.place, generation=replica.generation, evicted=evicted)
        self.instructions.append(free)

    def lost(self, lease: Lease, reason: str) -> None:
        """Tell a session that a lease of its has ended with the memory it was for."""
        self.instructions.append(Lost(lease=lease, reason=reason))

    def failed(self, replica: Replica, error: TrimsError, again_in_s: float) -> None:
        """The replica could not be made behind its image's readers."""
        self.instructions.append(Failed(key=replica.key, place=replica.place, error=error, again_in_s=again_in_s))

    def changed(self, replica: Replica, old: State, at_s: float, why: str) -> None:
        """The replica went from the state `old` to the one it is in."""
        changed = Changed(
            at_s=at_s,
            key=replica.key,
            place=replica.place,
            generation=replica.generation,
            old=old,
            new=replica.state,
            why=why,
        )
        self.instructions.append(changed)
