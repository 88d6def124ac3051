"""The shelf: every replica a daemon has, by image and place, and what is remembered of images that are gone.

It keeps and finds. Which state a replica is in, when it comes and when it goes, is decided by `Residency`.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING

from trims.core.place import Tier
from trims.core.replica import Replica, State

if TYPE_CHECKING:
    from collections.abc import Collection

    from trims.core.place import Place

#: Opens of images that are not resident any more are remembered for so many images, so that frequency outlives
#: eviction.
REMEMBERED_IMAGES = 4096


class Shelf:
    """All replicas.

    Args:
        peers: Devices that copy from each other directly, as (target, source).

    Attributes:
        replicas: By image key and place.
        by_key: The same, by image key, then by place. An image lies at a few places at most and is looked for by every
            cold open; walking all replicas for it would take milliseconds where there are thousands.
    """

    def __init__(self, peers: Collection[tuple[Place, Place]] = ()) -> None:
        self._peers = frozenset(peers)
        self.replicas: dict[tuple[str, Place], Replica] = {}
        self.by_key: dict[str, dict[Place, Replica]] = {}
        self._past_uses: OrderedDict[str, int] = OrderedDict()
        self._generations = itertools.count(1)

    def add(self, key: str, place: Place) -> Replica:
        """A new incarnation, in no state yet, with the uses of those before it."""
        replica = Replica(key, place, next(self._generations), uses=self._past_uses.pop(key, 0))
        self.replicas[key, place] = replica
        self.by_key.setdefault(key, {})[place] = replica
        return replica

    def remove(self, replica: Replica) -> None:
        """Take it off the shelf; its uses are remembered."""
        del self.replicas[replica.key, replica.place]
        elsewhere = self.by_key[replica.key]
        del elsewhere[replica.place]
        if not elsewhere:
            del self.by_key[replica.key]
        if replica.uses:
            self._past_uses[replica.key] = max(replica.uses, self._past_uses.pop(replica.key, 0))
            while len(self._past_uses) > REMEMBERED_IMAGES:
                self._past_uses.popitem(last=False)

    def find(self, key: str, place: Place) -> Replica | None:
        """The replica, in whatever state, or None."""
        return self.replicas.get((key, place))

    def places_of(self, key: str) -> list[Replica]:
        """All replicas of an image, fastest place first."""
        found = self.by_key.get(key, {})
        return sorted(found.values(), key=lambda replica: (replica.place.tier.rank, replica.place.device))

    def source_of(self, replica: Replica) -> Replica | None:
        """The best sealed replica of the same image to copy from, or None.

        A device copies from another one if the two are peers; if not, its image comes through the host. Shared memory
        is the best source of a disk image: nothing has to cross to the host for it.
        """
        others = [other for other in self.places_of(replica.key) if self._can_copy(other, replica)]
        if replica.place.tier is not Tier.GPU:
            others.sort(key=lambda other: other.place.tier is not Tier.CPU)
        return others[0] if others else None

    def is_promised(self, replica: Replica) -> bool:
        """A device's replica waits for room there, and is going to be copied from this one."""
        return any(
            other.state is State.QUEUED and other.place.tier is Tier.GPU and self.source_of(other) is replica
            for other in self.places_of(replica.key)
        )

    def _can_copy(self, source: Replica, target: Replica) -> bool:
        if source is target or source.state is not State.SEALED:
            return False
        between_devices = source.place.tier is target.place.tier is Tier.GPU
        return not between_devices or (target.place, source.place) in self._peers

    def next_due_s(self) -> float | None:
        """Clock time at which the next deadline or keep-alive is due, or None."""
        due = [replica.keep_until_s for replica in self.replicas.values()]
        due += [waiter.deadline_at_s for replica in self.replicas.values() for waiter in replica.waiters.values()]
        return min((moment for moment in due if moment is not None), default=None)
