"""Memory of all sealed replicas of a daemon, and the descriptors that it takes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trims.core.policy import capacity_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.replica import ReplicaId
    from trims.tiers.base import Extent


class SealedReplicas:
    """Extents by replica. Safe to use from any thread.

    Args:
        most: Descriptors that all extents may take together.

    Attributes:
        by_replica: All extents. Only this object writes there; one look needs no lock.
    """

    def __init__(self, most: int) -> None:
        self.by_replica: dict[ReplicaId, Extent] = {}
        self.most = most
        self._descriptors = 0
        self._lock = threading.Lock()
        #: Replicas whose memory is being given back, and fills that wait for a descriptor of one.
        self._freeing: set[ReplicaId] = set()
        self._parked: list[Callable[[], None]] = []

    def extents(self) -> dict[ReplicaId, Extent]:
        """Return a copy of `by_replica`, of one moment."""
        with self._lock:
            return dict(self.by_replica)

    def add(self, replica: ReplicaId, extent: Extent) -> None:
        """Add a replica; it may be there already."""
        with self._lock:
            before = self.by_replica.get(replica)
            self.by_replica[replica] = extent
            self._descriptors += _descriptors_of(extent) - _descriptors_of(before)

    def check_room(self, descriptors: int) -> None:
        """Raise CapacityError if so many descriptors more are too many."""
        if self._lacks(descriptors):
            raise capacity_errors.no_descriptors(descriptors, self._descriptors, self.most)

    def parks(self, descriptors: int, begin: Callable[[], None]) -> bool:
        """Return whether a fill waits: it lacks descriptors, and memory that has some is being given back.

        Args:
            descriptors: Needed by the fill.
            begin: Called once the memory was given back, or could not be.
        """
        with self._lock:
            waits = bool(self._freeing) and self._lacks(descriptors)
            if waits:
                self._parked.append(begin)
            return waits

    def begin_free(self, replica: ReplicaId) -> None:
        """Note that the memory of a replica is being given back."""
        with self._lock:
            self._freeing.add(replica)

    def end_free(self, replica: ReplicaId) -> None:
        """Take a replica out: its memory was given back, or was given up."""
        with self._lock:
            self._descriptors -= _descriptors_of(self.by_replica.pop(replica, None))
            self._freeing.discard(replica)
        self.begin_parked()

    def begin_parked(self) -> None:
        """Begin the fills that wait for a descriptor."""
        with self._lock:
            parked, self._parked = self._parked, []
        for begin in parked:
            begin()

    def _lacks(self, descriptors: int) -> bool:
        return self._descriptors + descriptors > self.most


def _descriptors_of(extent: Extent | None) -> int:
    return 0 if extent is None or extent.fd < 0 else 1 + len(extent.pages)
