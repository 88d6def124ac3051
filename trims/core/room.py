"""Room: what each place may hold, what it holds, and who would have to go. It chooses; `Residency` acts.

The running figures are kept here and checked against the replicas by `books.validate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core import books
from trims.core.replica import CHARGED, Replica, State
from trims.core.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from trims.core.errors import CapacityError
    from trims.core.place import Place
    from trims.core.policy import Policy


class Room:
    """Capacity, charges, pins and policies of all places.

    Args:
        capacities: Bytes each place may hold.
        policies: One for each place.
        reserves: Bytes that are left free at a place beside its capacity, for the work of those who read there.
        units: Bytes in which a place gives memory; 1 where nothing is said. All charges are multiples.

    Attributes:
        capacities: Bytes each place may hold; a place that is not listed does not exist.
        charged: Bytes each place holds now, memory that is on its way back included.
        pins: Images that are never chosen to go from a place.
        working: Bytes that those who read at a place need beside what they read. What exceeds the reserve is not
            given to images.
    """

    def __init__(
        self,
        capacities: Mapping[Place, int],
        policies: Mapping[Place, Policy],
        reserves: Mapping[Place, int] | None = None,
        units: Mapping[Place, int] | None = None,
    ) -> None:
        self.capacities = dict(capacities)
        self.charged = dict.fromkeys(capacities, 0)
        self.working = dict.fromkeys(capacities, 0)
        self._units = dict(units or {})
        self._reserves = {**dict.fromkeys(capacities, 0), **(reserves or {})}
        self.pins: set[tuple[str, Place]] = set()
        self._policies = dict(policies)

    def free_bytes(self, place: Place) -> int:
        """Bytes images may still take; below 0 if those who read need more than is left."""
        return self.capacities[place] - self.charged[place] - self.working_over(place)

    def takes(self, place: Place, nbytes: int) -> int:
        """What an image of that length takes at a place."""
        return align_up(nbytes, self._units.get(place, 1))

    def working_over(self, place: Place, more_bytes: int = 0) -> int:
        """By how much the work of those who read exceeds the reserve, if it were so much more."""
        return max(0, self.working[place] + more_bytes - self._reserves[place])

    def need_of(self, replica: Replica) -> int:
        """Bytes that must be free for a replica and the work of one who reads it."""
        more = self.working_over(replica.place, replica.working_bytes) - self.working_over(replica.place)
        return self.takes(replica.place, replica.nbytes) + more

    def least_need_of(self, replica: Replica) -> int:
        """The same, if nobody else read there."""
        beside = max(0, replica.working_bytes - self._reserves[replica.place])
        return self.takes(replica.place, replica.nbytes) + beside

    def pin(self, key: str, place: Place, *, pinned: bool) -> None:
        """Pin or unpin an image at a place. Idempotent."""
        if pinned:
            self.pins.add((key, place))
        else:
            self.pins.discard((key, place))

    def policy_name(self, place: Place) -> str:
        """Which policy chooses there."""
        return self._policies[place].name

    def moved(self, replica: Replica, old: State) -> None:
        """A replica left the state `old`: charge it or give its bytes back."""
        taken = self.takes(replica.place, replica.nbytes)
        self.charged[replica.place] += taken * ((replica.state in CHARGED) - (old in CHARGED))

    def used(self, replica: Replica) -> None:
        """Tell the policy of a fill or a grant."""
        self._policies[replica.place].used(books.usage(replica))

    def leaves(self, replica: Replica, *, evicted: bool) -> None:
        """Tell the policy that a replica goes; `evicted` if it was chosen."""
        self._policies[replica.place].gone(replica.key, evicted=evicted)

    def evictable(self, replica: Replica) -> bool:
        """True if nobody holds it and nobody pinned it."""
        pinned = (replica.key, replica.place) in self.pins
        return replica.state is State.SEALED and not replica.held and not pinned

    def is_coming(self, place: Place, need: int, replicas: Collection[Replica]) -> bool:
        """True if memory that is being freed will make `need` bytes fit."""
        return need <= self.free_bytes(place) + self._freeing_bytes(place, replicas)

    def victims(
        self,
        place: Place,
        need: int,
        replicas: Collection[Replica],
        *,
        in_part: bool = False,
        spare: Callable[[Replica], bool] = lambda _: False,
    ) -> list[Replica]:
        """Who must go for `need` bytes: as few as will do, in the policy's order.

        Empty if nobody needs to, and also if even everybody idle would not do: then nothing is evicted in vain. With
        `in_part` every byte helps, and whoever is idle goes. Whom `spare` names does not count as idle.
        """
        missing = need - self.free_bytes(place) - self._freeing_bytes(place, replicas)
        here = (replica for replica in replicas if replica.place == place and self.evictable(replica))
        idle = {replica.key: replica for replica in here if not spare(replica)}
        most = sum(self.takes(place, replica.nbytes) for replica in idle.values())
        if missing <= 0 or (missing > most and not in_part):
            return []
        chosen: list[Replica] = []
        for key in self._policies[place].order([books.usage(replica) for replica in idle.values()]):
            if missing <= 0:
                break
            chosen.append(idle[key])
            missing -= self.takes(place, idle[key].nbytes)
        return chosen

    def _freeing_bytes(self, place: Place, replicas: Collection[Replica]) -> int:
        """Bytes on their way back: nobody can hold them up, only a running copy delays them."""
        leaving = (replica for replica in replicas if replica.place == place and _is_leaving(replica))
        return sum(self.takes(place, replica.nbytes) for replica in leaving)

    def refusal(self, replica: Replica, replicas: Collection[Replica]) -> CapacityError:
        """No room, with the numbers that explain why."""
        return books.capacity_error(self, replica, replicas)


def _is_leaving(replica: Replica) -> bool:
    return replica.state is State.FREEING or (replica.state is State.DRAINING and not replica.leases)
