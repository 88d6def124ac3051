"""Fills that no request waits for. A rate limiter slows each until a request waits for it.

A request waits for a fill in one of two ways: it wants the replica, or it wants room that the fill holds or borrows.
The measurement that comes before a fill counts as a part of it, and keeps no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.core.place import Place
    from trims.core.replica import Replica


class BackgroundFills:
    """All fills that run, or are measured for, and that no request waits for."""

    def __init__(self) -> None:
        #: Fills by generation: the replica, and the places where its fill keeps room from others.
        self._fills: dict[int, tuple[Replica, tuple[Place, ...]]] = {}
        self._at: dict[Place, dict[int, Replica]] = {}

    def begin(self, replica: Replica, places: Iterable[Place]) -> None:
        """Record a fill that begins, or the measurement for one.

        Args:
            places: Where its fill holds room, or keeps its source from being evicted.
        """
        kept = tuple(places)
        self._fills[replica.generation] = replica, kept
        for place in kept:
            self._at.setdefault(place, {})[replica.generation] = replica

    def end(self, replica: Replica) -> bool:
        """End a fill: it is over, or a request waits for it now. Return whether it was recorded here. Idempotent."""
        known = self._fills.pop(replica.generation, None)
        if known is None:
            return False
        for place in known[1]:
            del self._at[place][replica.generation]
        return True

    def at(self, place: Place) -> list[Replica]:
        """Return the replicas whose fills keep room from others at the place, oldest first."""
        return list(self._at.get(place, {}).values())

    def all(self) -> list[Replica]:
        """Return all background fills, oldest first."""
        return [replica for replica, _ in self._fills.values()]

    def __contains__(self, replica: Replica) -> bool:
        return replica.generation in self._fills
