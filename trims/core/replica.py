"""A replica's states, the table of its legal steps, and its story.

The table in `docs/design.md` and this one are compared by a test. State changes only in `Residency`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from trims.core.errors import InvalidTransitionError

if TYPE_CHECKING:
    from trims.core.lease import Waiter
    from trims.core.place import Place

_STORY_LENGTH = 32


class State(Enum):
    """Where a replica is in its life. ABSENT is the state of one that is not in the books."""

    ABSENT = "absent"
    QUEUED = "queued"
    FILLING = "filling"
    SEALED = "sealed"
    DRAINING = "draining"
    FREEING = "freeing"


#: (from, to) -> what brings it about.
TRANSITIONS: dict[tuple[State, State], str] = {
    (State.ABSENT, State.QUEUED): "first waiter",
    (State.ABSENT, State.SEALED): "adopted after a restart",
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
        key: Image key.
        place: Where.
        generation: Which incarnation; completions of an older one are stale.
        state: See `State`.
        nbytes: Size in bytes, 0 while unknown.
        measured: True once the size is known from planning a conversion.
        cost_s: Seconds the last fill took: what losing the replica would cost.
        leases: Numbers of the leases that hold it.
        borrowers: Fills that read from it, as (place, generation): the internal lease of a promotion.
        waiters: By ticket, in order of arrival.
        source: Where a running fill reads from; None for the artifact.
        working_bytes: What each session that reads it needs on its device beside it: activations, libraries' own.
        readers: How many leases each session has on it; while it is filled, how many each waits for.
        doomed: Its place was lost while it was filled: wherever its bytes are, they are not to be granted.
        uses: Opens granted, including those of earlier incarnations that are still remembered.
        filled_at_s: Clock time of sealing.
        last_used_s: Clock time of the last grant or close.
        keep_alive_s: Seconds an idle replica stays: None until somebody needs the room (lazy), 0 not at all (eager).
        keep_until_s: When keep-alive ends; None while leased or lazy.
    """

    key: str
    place: Place
    generation: int
    state: State = State.ABSENT
    nbytes: int = 0
    measured: bool = False
    measuring: bool = False
    cost_s: float = 0.0
    leases: set[int] = field(default_factory=set)
    borrowers: set[tuple[Place, int]] = field(default_factory=set)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    source: Place | None = None
    working_bytes: int = 0
    readers: dict[int, int] = field(default_factory=dict)
    doomed: bool = False
    uses: int = 0
    filled_at_s: float = 0.0
    last_used_s: float = 0.0
    keep_alive_s: float | None = None
    keep_until_s: float | None = None
    story: deque[str] = field(default_factory=lambda: deque(maxlen=_STORY_LENGTH))

    def step(self, to: State, at_s: float, why: str) -> None:
        """Change state, if the table allows it. Raises InvalidTransitionError with the replica's story."""
        if (self.state, to) not in TRANSITIONS:
            told = "\n  ".join(self.story)
            raise InvalidTransitionError(
                f"{self.key[:16]} at {self.place} cannot go from {self.state.value} to {to.value} ({why}). Its story:\n"
                f"  {told}"
            )
        self.story.append(f"{at_s:.6f} {self.state.value} -> {to.value}: {why}")
        self.state = to

    @property
    def held(self) -> bool:
        """True while a lease or a running copy reads it."""
        return bool(self.leases or self.borrowers)
