"""The table of replicas: every replica a daemon has, by image and place, and how often images that left were used.

It keeps and finds. Which state a replica is in, when it comes and when it goes, is decided by `Residency`.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING

from trims.core.place import TierKind
from trims.core.replica import Replica, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from trims.core.place import Place

#: Number of images whose use counts outlive their eviction.
REMEMBERED_IMAGES = 4096


class ReplicaTable:
    """All replicas.

    Args:
        peers: Devices that copy from each other directly, as (target, source).

    Attributes:
        by_key: Replicas by image key, then by place. An image lies at a few places at most.
        by_place: Replicas by place, then by image key.
    """

    def __init__(self, places: Iterable[Place], peers: Collection[tuple[Place, Place]] = ()) -> None:
        self._peers = frozenset(peers)
        self.replicas: dict[tuple[str, Place], Replica] = {}
        self.by_key: dict[str, dict[Place, Replica]] = {}
        self.by_place: dict[Place, dict[str, Replica]] = {place: {} for place in places}
        self._past_uses: OrderedDict[str, int] = OrderedDict()
        self._generations = itertools.count(1)

    def add(self, key: str, place: Place) -> Replica:
        """Add and return a new incarnation, in no state yet, with the uses of those before it."""
        replica = Replica(key, place, next(self._generations), uses=self._past_uses.pop(key, 0))
        self.replicas[key, place] = replica
        self.by_key.setdefault(key, {})[place] = replica
        self.by_place[place][key] = replica
        return replica

    def remove(self, replica: Replica) -> None:
        """Take it out of the table; its uses are remembered."""
        del self.replicas[replica.key, replica.place]
        del self.by_place[replica.place][replica.key]
        elsewhere = self.by_key[replica.key]
        del elsewhere[replica.place]
        if not elsewhere:
            del self.by_key[replica.key]
        if replica.uses:
            self._past_uses[replica.key] = max(replica.uses, self._past_uses.pop(replica.key, 0))
            while len(self._past_uses) > REMEMBERED_IMAGES:
                self._past_uses.popitem(last=False)

    def find(self, key: str, place: Place) -> Replica | None:
        """Return the replica, in whatever state, or None."""
        return self.replicas.get((key, place))

    def places_of(self, key: str) -> list[Replica]:
        """Return all replicas of an image, fastest place first."""
        found = self.by_key.get(key, {})
        if len(found) < 2:
            return list(found.values())
        return sorted(found.values(), key=lambda replica: (replica.place.tier.rank, replica.place.device))

    def source_of(self, replica: Replica) -> Replica | None:
        """Return the best sealed replica of the same image to copy from, or None.

        A device copies from another one if the two are peers; if not, its image comes through the host. Shared memory
        is the best source of a disk image: nothing has to cross to the host for it.
        """
        if len(self.by_key.get(replica.key, ())) < 2:
            return None
        others = [other for other in self.places_of(replica.key) if self._can_copy(other, replica)]
        if replica.place.tier is not TierKind.GPU:
            others.sort(key=lambda other: other.place.tier is not TierKind.CPU)
        return others[0] if others else None

    def is_promised(self, replica: Replica) -> bool:
        """Return whether a device's replica waits for room there and is going to be copied from this one."""
        siblings = self.by_key.get(replica.key, {})
        return len(siblings) > 1 and any(
            other.state is State.QUEUED and other.place.tier is TierKind.GPU and self.source_of(other) is replica
            for other in siblings.values()
        )

    def _can_copy(self, source: Replica, target: Replica) -> bool:
        if source is target or source.state is not State.SEALED:
            return False
        if target.place.tier is TierKind.GPU and source.place.tier is TierKind.CLOUD:
            return False  # the host has it first
        between_devices = source.place.tier is target.place.tier is TierKind.GPU
        return not between_devices or (target.place, source.place) in self._peers
