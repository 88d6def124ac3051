"""Giving memory of replicas back, again and again where a tier fails to."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.core.place import Place
    from trims.core.replica import ReplicaId
    from trims.store.fill.sealed_replicas import SealedReplicas
    from trims.store.fill.workers import Workers
    from trims.tiers.base import Extent, Tier

log = logging.getLogger(__name__)
#: Tries of a failed free, and the seconds between two. After the last the memory counts as freed, and the log says what
#: was left where.
FREE_TRIES = 4
FREE_PAUSE_S = 1.0


class Freeing:
    """Replicas whose memory is given back.

    Args:
        workers: Do it.
        stopping: Set when nothing is to be tried again.
    """

    def __init__(
        self,
        tiers: Mapping[Place, Tier],
        memory: SealedReplicas,
        workers: Workers,
        *,
        clock: Callable[[], float],
        stopping: threading.Event,
    ) -> None:
        self._tiers = tiers
        self._memory = memory
        self._workers = workers
        self._clock = clock
        self._stopping = stopping
        self._lock = threading.Lock()
        #: Frees that failed: when to try again, and how.
        self._unfreed: list[tuple[float, Callable[[], None]]] = []

    def begin(self, replica: ReplicaId, freed: Callable[[], None], tries: int = 0) -> None:
        """Give the memory of a replica back.

        Args:
            replica: Sealed replica, which is taken out of the sealed ones.
            freed: Called once that is done, or given up.
            tries: How often it was tried before.
        """
        self._memory.begin_free(replica)
        self._workers.freeing(replica.place).submit(lambda: self._free(replica, freed, tries))

    def try_again(self, now_s: float) -> None:
        """Try once more what failed, if its pause is over."""
        with self._lock:
            due = [begin for at_s, begin in self._unfreed if at_s <= now_s]
            self._unfreed = [each for each in self._unfreed if each[0] > now_s]
        for begin in due:
            begin()

    def next_due_s(self) -> float | None:
        """Return when a failed free is tried again; None if none is to be."""
        with self._lock:
            return min((at_s for at_s, _ in self._unfreed), default=None)

    def remove(self, replica: ReplicaId, extent: Extent) -> None:
        """Remove what an earlier daemon left and was not lent yet; what cannot be is logged and stays."""
        try:
            self._tiers[replica.place].free(extent)
        except Exception:
            log.exception("%s cannot be removed, and is left where it is", extent.label)

    def _free(self, replica: ReplicaId, freed: Callable[[], None], tries: int) -> None:
        extent = self._memory.by_replica.get(replica)
        try:
            if extent is not None:
                with span(f"free.{replica.place}", key=replica.key[:16], image_bytes=extent.nbytes):
                    self._tiers[replica.place].free(extent)
        except BaseException as error:
            log.exception("%s at %s cannot be given back", replica.key[:16], replica.place)
            if tries < FREE_TRIES and not self._stopping.is_set():
                with self._lock:
                    again_s = self._clock() + FREE_PAUSE_S
                    self._unfreed.append((again_s, lambda: self.begin(replica, freed, tries + 1)))
                return
            label = "" if extent is None else extent.label
            log.error("%s is left where it is and counts no more: %s", label, error)  # noqa: TRY400 - logged above
        self._memory.end_free(replica)
        freed()
