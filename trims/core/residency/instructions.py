"""Instructions that follow from one event, in order, each written from the replica it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.residency.events import (
    Abandon,
    Changed,
    Failed,
    Fill,
    Free,
    Instruction,
    Lost,
    Measure,
    RaisePriority,
    Ready,
    Refuse,
)

if TYPE_CHECKING:
    from trims.core.errors import TrimsError
    from trims.core.lease import Lease, Waiter
    from trims.core.replica import Replica, State


class Instructions:
    """Instructions of one event.

    Attributes:
        written: Instructions for the store, which carries them out in this order. `Residency` gives each event a new
            list.
    """

    def __init__(self) -> None:
        self.written: list[Instruction] = []

    def ready(self, waiter: Waiter, replica: Replica) -> None:
        """Answer a waiter that wanted no lease: the replica is there."""
        ready = Ready(ticket=waiter.ticket, key=replica.key, place=replica.place, nbytes=replica.nbytes)
        self.written.append(ready)

    def refuse(self, waiter: Waiter, error: TrimsError) -> None:
        """Answer the waiter with the error."""
        self.written.append(Refuse(ticket=waiter.ticket, error=error))

    def measure(self, replica: Replica, *, behind: bool) -> None:
        """Have the replica's size found, which room for it depends on; `behind` if no request waits for it."""
        measure = Measure(
            key=replica.key,
            place=replica.place,
            generation=replica.generation,
            measurement=replica.measuring,
            behind=behind,
            tenant=next(iter(replica.tenants), None),
        )
        self.written.append(measure)

    def abandon(self, replica: Replica) -> None:
        """Drop a planned conversion: the last waiter of the queued replica left."""
        self.written.append(Abandon(key=replica.key, place=replica.place, generation=replica.generation))

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
        self.written.append(fill)

    def raise_priority(self, replica: Replica) -> None:
        """Have the replica filled as fast as can be: a request waits for it now."""
        self.written.append(RaisePriority(key=replica.key, place=replica.place, generation=replica.generation))

    def free(self, replica: Replica, *, evicted: bool) -> None:
        """Have the replica's memory given back; `evicted` if it was chosen to make room."""
        free = Free(key=replica.key, place=replica.place, generation=replica.generation, evicted=evicted)
        self.written.append(free)

    def lost(self, lease: Lease, reason: str) -> None:
        """Notify a session that a lease of its has ended with the memory it was for."""
        self.written.append(Lost(lease=lease, reason=reason))

    def failed(self, replica: Replica, error: TrimsError, again_in_s: float) -> None:
        """Have it logged that the replica could not be made behind its image's readers."""
        self.written.append(Failed(key=replica.key, place=replica.place, error=error, again_in_s=again_in_s))

    def changed(self, replica: Replica, old: State, at_s: float, why: str) -> None:
        """Report to watchers that the replica went from the state `old` to its present one."""
        changed = Changed(
            at_s=at_s,
            key=replica.key,
            place=replica.place,
            generation=replica.generation,
            old=old,
            new=replica.state,
            why=why,
        )
        self.written.append(changed)
