"""Orders of operators as events of residency: evict, pin, retire, drain, purge."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trims.core.errors import InUseError, NotSupportedError, TrimsError
from trims.core.place import CLOUD, DISK
from trims.core.residency.events import (
    DrainRequested,
    EvictRequested,
    ManifestChanged,
    PinChanged,
    ReplicaBroken,
    WaiterLeft,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.place import Place
    from trims.core.replica import ReplicaId
    from trims.core.residency.events import Event
    from trims.core.residency.residency import Residency
    from trims.store.catalog import Catalog
    from trims.store.fill.runner import Runner
    from trims.store.shell import Shell

log = logging.getLogger(__name__)
_PURGE_S = 30.0


class OrderEvents:
    """Feeds residency with what operators order.

    Args:
        feed: Lets an event happen.
        shell: Knows where images are, and waits for changes.
        catalog: Knows which names stand for an image.
    """

    def __init__(
        self,
        feed: Callable[[Event], None],
        residency: Residency,
        shell: Shell,
        runner: Runner,
        catalog: Catalog,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._feed = feed
        self._residency = residency
        self._shell = shell
        self._runner = runner
        self._catalog = catalog
        self._clock = clock

    def drain(self) -> None:
        """Take no new opens from now on."""
        self._feed(DrainRequested(at_s=self._clock()))

    def give_up(self, ticket: int) -> None:
        """Let a request leave before it was answered."""
        self._feed(WaiterLeft(at_s=self._clock(), ticket=ticket))

    def pin_changed(self, key: str, place: Place, pinned: bool) -> None:
        """Pin an image at a place, or unpin it."""
        self._feed(PinChanged(at_s=self._clock(), key=key, place=place, pinned=pinned))

    def manifest_changed(self, key: str) -> None:
        """Note that a name of the image has another manifest."""
        self._feed(ManifestChanged(at_s=self._clock(), key=key))

    def report_broken(self, key: str, place: Place, generation: int, reason: str) -> None:
        """Report that a replica's bytes turned out wrong."""
        self._feed(ReplicaBroken(at_s=self._clock(), key=key, place=place, generation=generation, reason=reason))

    def evict_image(
        self, key: str, place: Place | None = None, *, drain: bool = False, timeout_s: float = 60.0, name: str = ""
    ) -> list[Place]:
        """Free an image's replicas, at all places or one; return where they were.

        With `drain` a leased replica goes when its last lease closes, and this returns at once.

        Raises:
            InUseError: A replica is leased, without `drain`; the image is called `name` in it.
        """
        if place is CLOUD:
            raise NotSupportedError("what lies in the cloud is not this daemon's to free; `trims rm` forgets the model")
        mine = [replica.id for replica in self._shell.places_of(key) if replica.place is not CLOUD]
        there = [replica for replica in mine if place is None or replica.place.is_in(place)]
        for replica in there:
            try:
                self._evict(key, replica.place, drain=drain)
            except InUseError as error:
                raise InUseError(f"{name or key[:16]}: {error}") from error
        self._shell.wait_for(lambda: all(map(self._settled, there)), timeout_s)
        return [replica.place for replica in there]

    def _evict(self, key: str, place: Place, *, drain: bool) -> None:
        self._feed(EvictRequested(at_s=self._clock(), key=key, place=place, drain=drain))

    def _settled(self, evicted: ReplicaId) -> bool:
        """Return whether a replica is gone or waits for its readers. The image may have been loaded again meanwhile."""
        replica = self._residency.find(evicted.key, evicted.place)
        return replica is None or replica.id != evicted or replica.held

    def retire_image(self, key: str, name: str) -> None:
        """Free an image if no name stands for it, each replica after its last lease; the log calls it `name`."""
        if self._catalog.names_of(key):
            return
        for replica in self._shell.places_of(key):
            try:
                self._evict(key, replica.place, drain=True)
            except TrimsError as error:
                log.warning("%s stays at %s for now: %s", name, replica.place, error)

    def purge(self) -> None:
        """Free every replica whose memory does not survive a reboot anyway. Nothing may be filled any more."""
        for replica in self._runner.extents():
            if replica.place != DISK:
                self.pin_changed(replica.key, replica.place, False)
                try:
                    self._evict(replica.key, replica.place, drain=True)
                except InUseError as error:
                    log.warning("%s at %s is not purged: %s", replica.key[:16], replica.place, error)
        self._shell.wait_for(self._is_purged, timeout_s=_PURGE_S)

    def _is_purged(self) -> bool:
        return all(replica.place == DISK for replica in self._runner.extents())
