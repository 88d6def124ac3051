"""Work that follows from a fill: the catalog remembers it, readers move, an expensive image is kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trims.core.place import CLOUD, CPU, DISK, FILE
from trims.core.replica import ReplicaId, State
from trims.store.adoption import seal_identity
from trims.store.catalog import ImageRecord
from trims.store.pending_requests import log_failure
from trims.store.residency_options import is_kept

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from trims.core.place import Place
    from trims.core.residency.events import Filled
    from trims.core.residency.residency import Residency
    from trims.store.catalog import Catalog
    from trims.store.fill.runner import Runner
    from trims.store.pending_requests import Outcome
    from trims.store.shell import Shell
    from trims.tiers.base import Tier

log = logging.getLogger(__name__)


class Fills:
    """Handlers of fills that succeeded.

    Args:
        shell: Knows images and leases; notifies sessions.
        catalog: Remembers.
        have: Brings an image to a place: key, place, keep-alive, callback for the outcome.
        retire: Frees an image that no name stands for: its key, and what to call it in the log.
    """

    def __init__(
        self,
        residency: Residency,
        shell: Shell,
        runner: Runner,
        catalog: Catalog,
        tiers: Mapping[Place, Tier],
        *,
        counters: Counter[str],
        have: Callable[[str, Place, float | None, Callable[[Outcome], None]], None],
        retire: Callable[[str, str], None],
    ) -> None:
        self._residency = residency
        self._shell = shell
        self._runner = runner
        self._catalog = catalog
        self._tiers = tiers
        self._counters = counters
        self._have = have
        self._retire = retire
        #: Images that no name stands for since the key had their names: to be freed once it has an image.
        self._superseded: dict[str, set[str]] = {}

    def supersede(self, before: str, now: str) -> None:
        """Free the image `before` once the image that took its name can be read: builder or artifact was edited."""
        self._superseded.setdefault(now, set()).add(before)
        if any(found.state is State.SEALED and found.place is not CLOUD for found in self._shell.places_of(now)):
            self._free_superseded(now)

    def _free_superseded(self, key: str) -> None:
        for before in self._superseded.pop(key, ()):
            if before != key:
                self._retire(before, f"the image {before[:16]}, which another one has superseded,")

    def remember(self, event: Filled) -> None:
        """Keep what the next daemon would find out again by reading: how the image was made, and that it is sealed.

        Never raises: the requests that wait for the image must be answered whatever becomes of the catalog.
        """
        try:
            self._note(event)
        except Exception:
            log.exception("%s is not remembered: the next daemon reads it again", event.key[:16])

    def _note(self, event: Filled) -> None:
        extent = self._runner.sealed.get(ReplicaId(event.key, event.place, event.generation))
        sealed = extent is not None and extent.fresh
        if sealed and extent is not None and (self._tiers[event.place].hash_on_adoption or event.place == DISK):
            self._catalog.remember_seal(extent.label, seal_identity(extent))
        resolved = self._shell.image(event.key)
        replica = self._residency.find(event.key, event.place)
        if resolved is None or replica is None:
            return
        if self._catalog.image(event.key) is None:
            record = ImageRecord(event.key, resolved.name, resolved.recipe, replica.nbytes, event.cost_s)
            self._catalog.remember_image(record)

    def follow(self, event: Filled) -> None:
        """Do what follows from a fill once its waiters were answered."""
        if event.place is CPU:
            self._notify_readers(event)
        self._keep(event)
        self._free_superseded(event.key)

    def _keep(self, event: Filled) -> None:
        """Keep the image on disk if it was expensive to make."""
        resolved = self._shell.image(event.key)
        replica = self._residency.find(event.key, event.place)
        if resolved is None or replica is None or event.place is FILE:
            return
        self._counters[f"filled_bytes.{event.place}"] += replica.nbytes
        on_disk = self._residency.find(event.key, DISK)
        wanted = is_kept(resolved) and event.place != DISK and DISK in self._tiers
        if wanted and (on_disk is None or on_disk.state in (State.DRAINING, State.FREEING)):
            self._have(event.key, DISK, None, log_failure(f"{resolved.name} is not kept on disk"))

    def _notify_readers(self, event: Filled) -> None:
        """Notify sessions that read an image from disk that it lies in shared memory now: they may move there."""
        for session in self._shell.upgradable(event.key):
            self._shell.notices.upgraded(session, event.key)
