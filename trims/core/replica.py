"""A replica's states, the table of its legal steps, and its history.

The table in `docs/design.md` and this one are compared by a test. State changes only in `Ledger`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import InvalidTransitionError

if TYPE_CHECKING:
    from trims.core.lease import Waiter
    from trims.core.place import Place

_STORY_LENGTH = 32


class ReplicaId(NamedTuple):
    """One incarnation of an image at a place."""

    key: str
    place: Place
    generation: int


class State(Enum):
    """States of a replica's life. ABSENT is the state of one that is not in the books."""

    ABSENT = "absent"
    QUEUED = "queued"
    FILLING = "filling"
    SEALED = "sealed"
    DRAINING = "draining"
    FREEING = "freeing"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a call into Python


class Share(Enum):
    """Kinds of use that a replica's bytes count as at its place; every charged replica counts in exactly one."""

    NONE = "not charged"
    FILLING = "being filled"
    READ = "leased or copied from"
    PINNED = "pinned"
    PROMISED = "kept for a device that waits for room"
    IDLE = "idle"
    LEAVING = "on its way back"

    __hash__ = object.__hash__


#: (from, to) -> what brings it about.
TRANSITIONS: dict[tuple[State, State], str] = {
    (State.ABSENT, State.QUEUED): "first waiter",
    (State.ABSENT, State.SEALED): "adopted after a restart, or found at an address",
    (State.ABSENT, State.FILLING): "found after a restart, being verified",
    (State.QUEUED, State.FILLING): "room found",
    (State.QUEUED, State.ABSENT): "last waiter gone or refused",
    (State.FILLING, State.SEALED): "filled",
    (State.FILLING, State.ABSENT): "fill failed, memory given back",
    (State.SEALED, State.DRAINING): "evicted or retired under leases",
    (State.SEALED, State.FREEING): "evicted or retired",
    (State.DRAINING, State.FREEING): "last lease closed",
    (State.FREEING, State.ABSENT): "tier confirmed",
}

#: States whose bytes count against the capacity of their place.
CHARGED = frozenset({State.FILLING, State.SEALED, State.DRAINING, State.FREEING})
#: States in which a replica may hold leases.
LEASABLE = frozenset({State.SEALED, State.DRAINING})


@dataclass(slots=True, eq=False)
class Replica:
    """An image at a place.

    Attributes:
        generation: Number of the incarnation; completions of an older one are stale. Rises with the order of arrival.
        nbytes: Size in bytes, 0 while unknown.
        measured: Whether the size is known from planning a conversion.
        measuring: Number of the measurement that is running, 0 if none is. A report of another one is stale.
        cost_s: Seconds the last fill took: what losing the replica would cost.
        leases: Numbers of the leases that hold it.
        borrowers: Fills that read from it, as (place, generation): the internal lease of a promotion.
        waiters: Waiters by ticket, in order of arrival.
        impatient: The waiters that have no deadline.
        promotions: How many of the waiters are promotions.
        modest: How many of the waiters can be served elsewhere as well.
        tenants: How many of the waiters each tenant has, in order of arrival; None stands for those without one.
        payer: The tenant for which its bytes count, from its fill on; None if it is none.
        source: Where a running fill reads from; None for the artifact.
        mappable: The artifact's own files can be served in its stead.
        descriptors: How many of the daemon's file descriptors it takes.
        workspace_bytes: What each session that reads it needs on its device beside it: activations, libraries' own.
        readers: How many leases each session has on it; while it is filled, how many each waits for.
        fills_without_room: How many of its fills, and of those of the incarnations whose waiters it has, found the
            machine without room.
        returned_before: Bytes that had come back at its place when its fill began: see `PlaceBooks.returned_bytes`.
        place_lost: Whether its place was lost while it was filled: it must not be granted, even if the fill succeeds.
        share: What its bytes count as, and `charged_bytes` how many; kept by `Capacity`.
        claimed_bytes: Room that is on its way back and kept for it while it is queued.
        overtaken_bytes: Bytes given to later arrivals while it was the first in line for room.
        reserved_until_s: Until when nothing may overtake it any more; None if it has not been overtaken that far.
        uses: Opens granted, including those of earlier incarnations that are still remembered.
        filled_at_s: Clock time of sealing.
        last_used_s: Clock time of the last grant or close.
        keep_alive_s: Seconds an idle replica stays: None until the room is needed (lazy), 0 not at all (eager).
        keep_until_s: When keep-alive ends; None while leased or lazy.
        alarm_s: When its keep-alive is looked at next; None if it is not going to be.
        steps: The latest changes of state: when, from which, to which, and why.
    """

    key: str
    place: Place
    generation: int
    state: State = State.ABSENT
    nbytes: int = 0
    measured: bool = False
    measuring: int = 0
    cost_s: float = 0.0
    leases: dict[int, None] = field(default_factory=dict)
    borrowers: set[tuple[Place, int]] = field(default_factory=set)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    impatient: dict[int, Waiter] = field(default_factory=dict)
    promotions: int = 0
    modest: int = 0
    tenants: dict[str | None, int] = field(default_factory=dict)
    payer: str | None = None
    source: Place | None = None
    mappable: bool = False
    descriptors: int = 1
    workspace_bytes: int = 0
    readers: dict[int, int] = field(default_factory=dict)
    fills_without_room: int = 0
    returned_before: int = 0
    place_lost: bool = False
    share: Share = Share.NONE
    charged_bytes: int = 0
    claimed_bytes: int = 0
    overtaken_bytes: int = 0
    reserved_until_s: float | None = None
    uses: int = 0
    filled_at_s: float = 0.0
    last_used_s: float = 0.0
    keep_alive_s: float | None = None
    keep_until_s: float | None = None
    alarm_s: float | None = None
    steps: deque[tuple[float, State, State, str]] = field(default_factory=lambda: deque(maxlen=_STORY_LENGTH))

    def step(self, to: State, at_s: float, why: str) -> None:
        """Change state, if the table allows it. Raises InvalidTransitionError with the replica's history."""
        if (self.state, to) not in TRANSITIONS:
            told = "\n  ".join(self.story())
            raise InvalidTransitionError(
                f"{self.key[:16]} at {self.place} cannot go from {self.state.value} to {to.value} ({why}). Its story:\n"
                f"  {told}"
            )
        self.steps.append((at_s, self.state, to, why))
        self.state = to

    def story(self) -> list[str]:
        """Return the replica's latest changes of state, a line each."""
        return [f"{at_s:.6f} {old.value} -> {new.value}: {why}" for at_s, old, new, why in self.steps]

    @property
    def id(self) -> ReplicaId:
        """Return which incarnation of which image this is, and where."""
        return ReplicaId(self.key, self.place, self.generation)

    @property
    def held(self) -> bool:
        """Return whether a lease or a running copy reads the replica."""
        return bool(self.leases or self.borrowers)
