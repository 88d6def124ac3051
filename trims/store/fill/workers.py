"""Workers of a store: which pool does what, so that what hangs, or takes long, holds up as little else as can be."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from trims.store.work import BEHIND, LAST, PoolsByMount
from trims.tiers.base import DeviceTier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trims.core.place import Place
    from trims.store.work import Pool, Pools
    from trims.tiers.base import Tier

log = logging.getLogger(__name__)
#: Artifacts of one mount point whose headers are read at once, by workers of their own: each takes milliseconds of the
#: interpreter lock, unless its file system hangs.
_PLANNERS = 2
#: Seconds that the end of a daemon waits for fills to stop; one may hang in a dead file system.
END_S = 60.0
#: Seconds that the end of a daemon waits for workers that only look at files and read their headers.
_READERS_END_S = 1.0


class Workers:
    """All pools of a runner.

    Args:
        copies: Copies that run at once.
        converters: Conversions in children that are planned or written at once; each may be a process with a framework
            in it. As many more may wait for room. What needs no child takes no converter.
        readers: Workers that have just looked into files: one goes on to a header by itself, with no other thread to
            wake. By default headers wait for workers of their own.

    Attributes:
        readers: Pool that reads headers: the given workers, or its own.
        copiers: Pool of fills that need no child.
        verifiers: Pool of what no request waits for.
    """

    def __init__(
        self, tiers: Mapping[Place, Tier], pools: Pools, copies: int, converters: int, readers: PoolsByMount | None
    ) -> None:
        self._new_pool = pools
        self.converters = pools("convert", converters, niceness=BEHIND)
        self.planners = PoolsByMount(pools, "plan", _PLANNERS)
        self.readers = readers or self.planners
        self.copiers = pools("copy", copies, niceness=BEHIND)
        self.freers = pools("free", 2, niceness=BEHIND)
        self.verifiers = pools("verify", 1, niceness=LAST)
        #: Workers for fills that no request waits for: by mount point of the artifact, or "" for copies.
        self._behind: dict[str, Pool] = {}
        self._lock = threading.Lock()
        #: A device, or a tier of a plug-in, that does not answer holds up no other place: (copies, frees) of each.
        self._apart: dict[Place, tuple[Pool, Pool]] = {
            place: (pools(f"copy-{place}", copies), pools(f"free-{place}", 1))
            for place, tier in tiers.items()
            if isinstance(tier, DeviceTier) or getattr(tier, "apart", False)
        }
        self._converters_apart = {
            place: pools(f"convert-{place}", converters, niceness=BEHIND)
            for place in self._apart
            if not isinstance(tiers[place], DeviceTier)
        }

    def is_apart(self, place: Place) -> bool:
        """Return whether a place has workers of its own."""
        return place in self._apart

    def copying(self, *places: Place) -> Pool:
        """Return the workers for a copy between places, or for a fill of one that needs no child."""
        return next((self._apart[place][0] for place in places if place in self._apart), self.copiers)

    def converting(self, place: Place) -> Pool:
        """Return the workers for a fill of a place from a child."""
        return self._converters_apart.get(place, self.converters)

    def freeing(self, place: Place) -> Pool:
        """Return the workers that give memory of a place back."""
        return self._apart[place][1] if place in self._apart else self.freers

    def behind(self, mount: str) -> Pool:
        """Return the worker for fills that no request waits for.

        Args:
            mount: Mount point of the artifact; empty for a copy.
        """
        with self._lock:
            pool = self._behind.get(mount)
            if pool is None:
                pool = self._behind[mount] = self._new_pool("behind", 1, niceness=BEHIND)
            return pool

    def finish(self) -> None:
        """Wait for all but those that give memory back; what hangs is left behind."""
        self.verifiers.stop()
        if not all([self.readers.stop(timeout_s=_READERS_END_S), self.planners.stop(timeout_s=_READERS_END_S)]):
            log.warning("a look at a file hangs: it is left behind")
        copiers = [copier for copier, _ in self._apart.values()]
        _stop(
            (*self._behind.values(), self.converters, self.copiers, *copiers, *self._converters_apart.values()),
            "a fill hangs in a read or a write: it is left behind",
        )

    def stop(self) -> None:
        """Wait for those that give memory back, after `finish`."""
        freers = (self.freers, *(freer for _, freer in self._apart.values()))
        _stop(freers, "memory that hangs while it is given back is left behind")


def _stop(pools: Iterable[Pool], otherwise: str) -> None:
    for pool in pools:
        if not pool.stop(timeout_s=END_S):
            log.error(otherwise)
