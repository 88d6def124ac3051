"""The store: names in, leases out. Life, sessions, orders and time of one daemon's models.

Not covered: sockets (`trims.daemon`), how events become work and answers (`shell`), bytes (`runner`), decisions
(`trims.core.residency.residency`).
"""

from __future__ import annotations

import logging
import math
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import (
    CallerError,
    LostPeerError,
    ModelNotFoundError,
    TrimsError,
)
from trims.core.place import CPU, FILE
from trims.core.residency.events import (
    Closed,
    Event,
    MemoryShort,
    Tick,
)
from trims.manifests.device_support import is_on_device
from trims.store.catalog import FILE_PREFIX
from trims.store.pins import Pins, SizesAt
from trims.store.resolve.hashing import Reading
from trims.store.resolve.mounts import mount_of
from trims.trace import spans

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from trims.background.rate_limit import RateLimiter
    from trims.core.place import Place
    from trims.core.residency.residency import Residency
    from trims.manifests.manifest import Manifest
    from trims.memory.pages import Pages
    from trims.store.adoption import Adoption
    from trims.store.catalog import Catalog
    from trims.store.cloud_replicas import CloudReplicas
    from trims.store.device_leases import DeviceLeases
    from trims.store.fill.runner import Runner
    from trims.store.model_changes import ModelChanges
    from trims.store.opens import Opens
    from trims.store.order_events import OrderEvents
    from trims.store.read_model import ReadModel
    from trims.store.resolve.resolver import Resolver
    from trims.store.shell import Shell
    from trims.store.ticker import Ticker
    from trims.store.watchers import Watchers
    from trims.store.work import PoolsByMount
    from trims.tiers.base import Tier
    from trims.tiers.cloud import CloudImage

log = logging.getLogger(__name__)
#: Seconds for which a description of a model waits for a look at its file.
_LOOK_S = 1.0
#: Pattern of a text that may be the beginning of an image key.
_KEY_BEGINS = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Parts:
    """Parts of one store, wired to each other by `assembly`."""

    tiers: Mapping[Place, Tier]
    resolver: Resolver
    catalog: Catalog
    counters: Counter[str]
    residency: Residency
    runner: Runner
    shell: Shell
    orders: OrderEvents
    pins: Pins
    opens: Opens
    watchers: Watchers
    model_changes: ModelChanges
    ticker: Ticker
    readers: PoolsByMount
    rate_limiter: RateLimiter
    feed: Callable[[Event], None]
    clock: Callable[[], float]
    read: ReadModel
    adoption: Adoption
    device_leases: DeviceLeases
    clouds: CloudReplicas | None = None


class Store:
    """The resident store of one daemon; made by `assembly.build_store`.

    Attributes:
        open: Ask for a model: `Opens.open`.
        load: Have a model loaded: `Opens.load`.
        resume: Lease exactly this image again: `Opens.resume`.
        evict_image: Free an image: `OrderEvents.evict_image`.
        report_broken: Report wrong bytes: `OrderEvents.report_broken`.
        drain: Take no new opens from now on: `OrderEvents.drain`.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.tiers, self.resolver, self.catalog = parts.tiers, parts.resolver, parts.catalog
        self.counters, self.residency, self.runner = parts.counters, parts.residency, parts.runner
        self.read, self.pins, self.watchers = parts.read, parts.pins, parts.watchers
        self.device_leases, self.model_changes = parts.device_leases, parts.model_changes
        self._shell, self._opens, self._orders = parts.shell, parts.opens, parts.orders
        self._feed, self._clock = parts.feed, parts.clock
        self.open, self.load, self.resume = parts.opens.open, parts.opens.load, parts.opens.resume
        self.evict_image, self.report_broken = parts.orders.evict_image, parts.orders.report_broken
        self.drain = parts.orders.drain

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Adopt what an earlier daemon left, then begin to keep time."""
        self.adopt()
        self._parts.ticker.start(self.next_due_s, self.tick)

    def adopt(self) -> None:
        """Take over what an earlier daemon left, and its pins."""
        mount_of(Path("/"))  # so that the first open finds the mount table read
        for tier in self.tiers.values():
            self._parts.adoption.take_over(tier)
        self.device_leases.guard_adopted(self._clock())
        self.pins.restore()
        self._parts.adoption.forget_what_is_gone()

    def stop(self, *, purge: bool = False) -> None:
        """End: requests that wait are refused, workers finish. Replicas stay for the next daemon unless `purge`."""
        self.drain()
        self._parts.ticker.stop()
        self.device_leases.expire(math.inf)
        looked_for = self._opens.lookups.stop()
        for ticket in self._shell.tickets():  # before they are taken: one that is granted meanwhile must be found
            self._orders.give_up(ticket)
        for ask in looked_for + self._shell.take_asks():
            ask.answer(LostPeerError("the daemon is shutting down"))
        self.runner.finish()
        if purge:
            self._orders.purge()
        self.runner.stop()
        self._parts.rate_limiter.copiers.close()

    def reads_below(self, folder: Path) -> bool:
        """Return whether an artifact's own files below a folder are served now."""
        begin = f"{folder}/"
        extents = [each for each in self.runner.extents().values() if each.place is FILE]
        return any(each.label.startswith(begin) for each in extents)

    def know_in_cloud(self, image: CloudImage) -> None:
        """Take an image that lies at an address into the books."""
        if self._parts.clouds is not None:
            self._parts.clouds.know(image)

    # -- sessions and requests -------------------------------------------------------------------------------------

    def begin_session(self) -> int:
        """Begin the session of a client that connected; return its number."""
        return self._shell.begin_session()

    def end_session(self, session: int) -> None:
        """End the session of a client: its leases close, its requests are refused. Idempotent."""
        self._opens.lookups.end_session(session)
        self._shell.end_session(session)

    def subscribe_to_upgrades(self, notify: Callable[[int, str], None]) -> None:
        """Have `notify` called once for each session that reads an image from disk, when it lies in shared memory, too.

        Args:
            tell: Takes the session and the key of the image.
        """
        self._shell.notices.subscribe_to_upgrades(notify)

    def taken_up(self, session: int, key: str) -> None:
        """Note that a session holds an image on disk again, as before a restart: it may lie in shared memory by now."""
        for each in self._shell.upgradable(key, session):
            self._shell.notices.upgraded(each, key)

    def close(self, session: int, lease: int) -> None:
        """Give a lease back. Idempotent; another session's lease is not touched.

        Where nothing but the session's end shows that a borrower is gone, the lease stays until then.
        """
        if self.device_leases.keeps(session, lease):
            self.counters["leases_kept"] += 1
            return
        self._feed(Closed(at_s=self._clock(), lease=lease, session=session))

    # -- orders ----------------------------------------------------------------------------------------------------

    def evict(
        self, name: str, place: Place | None = None, *, drain: bool = False, timeout_s: float = 60.0
    ) -> list[Place]:
        """Free a model's replicas; returns where it was. Raises InUseError unless `drain`, ModelNotFoundError.

        With `drain` a leased replica goes when its last lease closes, and this returns at once.
        """
        return self.evict_image(self.key_of(name), place, drain=drain, timeout_s=timeout_s, name=name)

    def pin(self, name: str, place: Place, *, pinned: bool) -> None:
        """Pin or unpin; that is kept over restarts, and an unpin outlives the manifest's `pin`. Pinning does not load.

        Raises NotSupportedError for a place without pins, ModelNotFoundError, TooLargeError before an artifact is read
        whose image the place can never hold, or what reading the artifact raises.
        """
        self.pins.check(place)
        sizes = SizesAt(lambda nbytes: self._shell.never_lies_at(nbytes, place))
        if pinned:
            resolved = self.resolver.resolve(name, Reading(sizes=sizes))
            self.pins.set(resolved.name, resolved.key, place, pinned=True)
        else:
            self.pins.set(self.resolver.row_of(_with_prefix(name)), self.key_of(name), place, pinned=False)

    def alias_changed(self, name: str) -> None:
        """Have the next opens of a model look up what its aliases lead to. Leases keep what they have."""
        self.resolver.forget(name)

    def renamed(self, before: str, row: str) -> None:
        """Keep what is known of a version, and its pins, under another row: see `Entry.row`."""
        self.manifest_changed(before)
        self.pins.rename(before, row)

    def manifest_changed(self, name: str) -> None:
        """Make lookups of a version under its old manifest count no more."""
        known = self.resolver.remembered(name)
        self.resolver.forget(name)
        if known is not None:
            self._orders.manifest_changed(known.key)

    def retire(self, name: str) -> None:
        """Retire the image of a name that goes, after its last lease, if no other name stands for it."""
        key = self.catalog.key_of(name)
        self.resolver.forget(name)
        self.pins.forget(name)
        if key is not None:
            self._orders.retire_image(key, name)

    def find_format(self, name: str) -> str:
        """Return the format of a model's artifact, found by its first bytes; empty if that fails or takes long."""
        return self._looked(name, self.resolver.where(name), lambda: self.resolver.find_format(name))

    def find_trouble(self, name: str) -> str:
        """Return why an open of a model must fail, by its files and headers; empty if nothing is found, or it hangs."""
        return self._looked(name, self.resolver.where(name), lambda: self.resolver.find_trouble(name))

    def find_refusal(self, manifest: Manifest) -> str:
        """Return why the predictor of a model, registered or not, would refuse all requests; empty as `find_format`."""
        stated = manifest.predictor.options or manifest.predictor.max_batch_size
        if not (stated or is_on_device(manifest)):
            return ""
        where = self.resolver.where_of(manifest)
        return self._looked(manifest.name, where, lambda: self.resolver.find_refusal(manifest))

    def _looked(self, name: str, where: str, look: Callable[[], str]) -> str:
        """Return what a look at a model's files finds; empty if that fails or takes longer than `_LOOK_S`.

        Safe where a file system may hang: a worker of its mount point looks.
        """
        found: list[str] = []
        over = threading.Event()

        def run() -> None:
            try:
                found.append(look())
            except (TrimsError, OSError) as error:
                log.debug("%s: its files cannot be looked at yet: %s", name, error)
            finally:
                over.set()

        if self._parts.readers.of(where).submit(run):
            over.wait(_LOOK_S)
        return found[0] if found else ""

    # -- questions -------------------------------------------------------------------------------------------------

    def pages_of(self, session: int, lease: int, file: int) -> Pages:
        """Return which pages of an artifact's file, by its number, belong to the image that a lease is for.

        Raises CallerError for a lease that has ended or is for other memory, or a number that is none.
        """
        extent = self._shell.extent_of(session, lease)
        if extent is None:
            raise CallerError(f"session {session} has no lease {lease}; open again")
        if not extent.pages:
            raise CallerError(f"lease {lease} is for memory at {extent.place}: its descriptor came with the grant")
        if not 0 <= file < len(extent.pages):
            raise CallerError(f"lease {lease} is for an artifact of {len(extent.pages)} files; {file} is none of them")
        return extent.pages[file]

    def key_of(self, name: str) -> str:
        """Return the key of a name or an absolute path; an image without a name is named by the beginning of its key.

        Raises ModelNotFoundError if the name was never loaded nor registered, or stands for several images.
        """
        name = _with_prefix(name)
        known = self.resolver.remembered(self.resolver.references.fresh(name))
        key = known.key if known else self.catalog.key_of(name)
        if key is None and _KEY_BEGINS.fullmatch(name):
            key = self._key_that_begins(name)
        if key is None:
            key = self.catalog.key_of(self.resolver.row_of(name))  # raises if there is no such model
        if key is None:
            raise ModelNotFoundError(f"{name!r} is registered but was never loaded here; `trims load {name}` does")
        return key

    def _key_that_begins(self, beginning: str) -> str | None:
        keys = self._shell.keys_that_begin(beginning)
        if len(keys) > 1:
            several = ", ".join(sorted(keys)[:3])
            raise ModelNotFoundError(f"{len(keys)} images have keys that begin with {beginning}: {several}; give more")
        return next(iter(keys), None)

    # -- time ------------------------------------------------------------------------------------------------------

    def next_due_s(self) -> float | None:
        """Return when `tick` has something to do, on the store's clock."""
        with self._shell.lock:
            due = (
                self.residency.next_due_s(),
                self._opens.lookups.next_due_s(),
                self._opens.next_due_s(),
                self.runner.next_due_s(),
                self.device_leases.due_s,
            )
        return min((moment for moment in due if moment is not None), default=None)

    def tick(self, now_s: float) -> None:
        """Time has passed: answer requests whose deadline is over, end keep-alives, try again what failed."""
        self._opens.lookups.expire(now_s)
        self._opens.tick(now_s)
        self.device_leases.expire(now_s)
        self.runner.try_again(now_s)
        self._feed(Tick(at_s=now_s))
        if spans.is_everything():
            self._count()

    def give_way(self, missing_bytes: int) -> None:
        """Evict idle images from memory, of which the machine or its control group lacks so many bytes."""
        self._feed(MemoryShort(at_s=self._clock(), place=CPU, missing_bytes=missing_bytes))

    def _count(self) -> None:
        """Record how full each tier is, and how many leases there are."""
        whole = self.read.whole()
        for tier in whole.tiers:
            spans.count(f"{tier.place}_bytes", tier.charged_bytes)
        spans.count("leases", whole.leases)


def _with_prefix(name: str) -> str:
    """Return the store's name of an absolute path; other names as they are."""
    return f"{FILE_PREFIX}{name}" if name.startswith("/") else name
