"""The store: names in, leases out. Life, sessions, orders and time of one daemon's models.

Not covered: sockets (`trims.daemon`), how events become work and answers (`shell`), bytes (`runner`), decisions
(`trims.core.residency.residency`).
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from trims.background.rate_limit import RateLimiter
from trims.core.errors import (
    CallerError,
    InUseError,
    LostPeerError,
    ModelNotFoundError,
    TrimsError,
)
from trims.core.place import DISK, FILE, Place
from trims.core.residency.admission import STAYS
from trims.core.residency.events import (
    Closed,
    DrainRequested,
    Event,
    EvictRequested,
    Filled,
    ManifestChanged,
    PinChanged,
    ReplicaBroken,
    Tick,
    WaiterLeft,
)
from trims.core.residency.residency import Residency
from trims.store.adoption import Adoption
from trims.store.catalog import FILE_PREFIX
from trims.store.device_leases import DeviceLeases
from trims.store.fill.completion import Fills
from trims.store.fill.runner import Runner, converter_of
from trims.store.fill.workspace import Workspaces
from trims.store.opens import Opens
from trims.store.pins import Pins, SizesAt
from trims.store.read_model import ReadModel
from trims.store.resolve.hashing import Reading
from trims.store.resolve.lookups import READERS
from trims.store.resolve.mounts import mount_of
from trims.store.shell import Shell
from trims.store.ticker import Ticker
from trims.store.watchers import Watchers
from trims.store.work import PoolsByMount, thread_pool
from trims.tiers.base import DeviceTier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.core.policy.eviction import Policy
    from trims.core.policy.quotas import Quota
    from trims.core.replica import ReplicaId
    from trims.formats.base import Limits
    from trims.formats.conversion.conversion import Conversion
    from trims.memory.pages import Pages
    from trims.store.catalog import Catalog
    from trims.store.fill.copying import HostBytes
    from trims.store.resolve.resolver import Resolved, Resolver
    from trims.store.work import Pools
    from trims.tiers.base import Tier
    from trims.trace.spans import Tracer

log = logging.getLogger(__name__)
#: Numbers in the range of leases that each start of a daemon has for itself; the wire carries numbers below 2^53.
_LEASES_OF_A_LIFE = 1 << 32
_LIVES = 1 << 20
#: Descriptors kept in reserve: an image that is being freed still has one while the next is made.
_SPARE_IMAGES = 8
#: Seconds for which a description of a model waits for a look at its file.
_LOOK_S = 1.0
#: Pattern of a text that may be the beginning of an image key.
_KEY_BEGINS = re.compile(r"[0-9a-f]{8,64}")


class Store:
    """The resident store of one daemon.

    Args:
        tiers: The places there are; each bounded by its own capacity.
        policies: One instance for each place.
        resolver: Names to images.
        catalog: What is remembered between lives.
        limits: For converter children.
        tracer: Gets a span for every step.
        keep_alive_s: For models whose manifest does not say.
        verify: Check every invariant after every event (`TRIMS_VERIFY=1`).
        workers: Copies that run at once.
        converters: Conversions that run at once.
        life: Which of the ranges of lease numbers this daemon uses; by chance if None.
        convert: Begins conversions; by default as `limits` say.
        pools: Makes the workers.
        host: Bytes of the host.
        clock: Monotonic seconds.
        max_images: Images that may be open at once: each takes a descriptor.
        behind_bytes_per_s: Bandwidth of hashing and copying that no request waits for; None for no limit.
        quotas: What each tenant may hold, by its name.

    Attributes:
        open: Ask for a model: `Opens.open`.
        load: Have a model loaded: `Opens.load`.
        resume: Lease exactly this image again: `Opens.resume`.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        policies: Mapping[Place, Policy],
        resolver: Resolver,
        catalog: Catalog,
        *,
        limits: Limits,
        tracer: Tracer,
        keep_alive_s: float | None = None,
        verify: bool = False,
        workers: int = 4,
        converters: int = 2,
        life: int | None = None,
        convert: Callable[[Resolved], Conversion] | None = None,
        pools: Pools = thread_pool,
        host: HostBytes | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_images: int = sys.maxsize,
        behind_bytes_per_s: float | None = None,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        self._pace = pace = RateLimiter(behind_bytes_per_s)
        self._clock = clock
        most_images = max(1, max_images - _SPARE_IMAGES)
        self.tiers = {tier.place: tier for tier in tiers}
        self.resolver = resolver
        self.catalog = catalog
        self.counters: Counter[str] = Counter()
        devices = [tier for tier in tiers if isinstance(tier, DeviceTier)]
        self.residency = Residency(
            {place: tier.capacity_bytes for place, tier in self.tiers.items()},
            policies,
            reserves={tier.place: tier.reserve_bytes for tier in devices},
            units={tier.place: tier.unit_bytes for tier in devices},
            peers=[(one.place, other.place) for one in devices for other in devices if other.uuid in one.peers],
            max_images=most_images,
            quotas=quotas,
            first_lease=(secrets.randbelow(_LIVES) if life is None else life % _LIVES) * _LEASES_OF_A_LIFE + 1,
        )
        self._ticker = Ticker(self.next_due_s, self.tick)
        self.watchers = Watchers(self.counters)
        self._readers = readers = PoolsByMount(pools, "read", READERS)
        self.runner = Runner(
            self.tiers,
            convert or converter_of(limits),
            tracer,
            self._feed,
            workers=workers,
            converters=converters,
            pools=pools,
            host=host,
            clock=clock,
            max_images=max_images,
            pace=pace,
            readers=readers,
        )
        self._shell = Shell(
            self.residency,
            self.runner,
            self.watchers,
            self.counters,
            verify=verify,
            clock=clock,
        )
        self.read = ReadModel(
            residency=self.residency,
            shell=self._shell,
            runner=self.runner,
            catalog=catalog,
            resolver=resolver,
            counters=self.counters,
            clock=clock,
        )
        self.pins = Pins(catalog, resolver, self.tiers, self._pin_changed)
        self._adoption = Adoption(
            self.residency,
            self.runner,
            catalog,
            self.counters,
            feed=self._feed,
            keep_alive_for=self._keep_alive_of,
            clock=clock,
            max_images=most_images,
        )
        self._workspace = Workspaces(catalog)
        self._keep_alive_s = keep_alive_s
        self._opens = opens = Opens(
            self._shell,
            resolver,
            self.pins,
            self._workspace,
            counters=self.counters,
            due_at=self._ticker.look_again,
            keep_alive_s=keep_alive_s,
            pools=pools,
            pace=pace,
            readers=readers,
            clock=clock,
        )
        self.open, self.load, self.resume = opens.open, opens.load, opens.resume
        self._fills = Fills(
            self.residency,
            self._shell,
            self.runner,
            catalog,
            self.tiers,
            counters=self.counters,
            have=opens.have,
            retire=self._retire_image,
        )
        resolver.on_superseded = self._fills.supersede
        self._shell.again, self._shell.filled = opens.again, self._fills.follow
        self.device_leases = DeviceLeases(
            devices,
            self._shell,
            self.residency,
            self._workspace,
            counters=self.counters,
            have=opens.have,
            lease=opens.resume,
            clock=clock,
        )

    def _feed(self, event: Event) -> None:
        """Handle an event of an order, or one that the runner reports."""
        if isinstance(event, Filled) and event.place is not FILE:
            self._fills.remember(event)
        self._shell.feed(event)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Adopt what an earlier daemon left, then begin to keep time."""
        self.adopt()
        self._ticker.start()

    def adopt(self) -> None:
        """Take over what an earlier daemon left, and its pins."""
        mount_of(Path("/"))  # so that the first open finds the mount table read
        for tier in self.tiers.values():
            self._adoption.take_over(tier)
        self.device_leases.guard_adopted(self._clock())
        self.pins.restore()
        self._adoption.forget_what_is_gone()

    def drain(self) -> None:
        """Take no new opens from now on."""
        self._feed(DrainRequested(at_s=self._clock()))

    def stop(self, *, purge: bool = False) -> None:
        """End: requests that wait are refused, workers finish. Replicas stay for the next daemon unless `purge`."""
        self.drain()
        self._ticker.stop()
        self.device_leases.expire(math.inf)
        looked_for = self._opens.lookups.stop()
        for ticket in self._shell.tickets():  # before they are taken: one that is granted meanwhile must be found
            self._feed(WaiterLeft(at_s=self._clock(), ticket=ticket))
        for ask in looked_for + self._shell.take_asks():
            ask.answer(LostPeerError("the daemon is shutting down"))
        self.runner.finish()
        if purge:
            self._purge()
        self.runner.stop()
        self._pace.copiers.close()

    def _purge(self) -> None:
        """Free every replica whose memory does not survive a reboot anyway. Nothing is being filled any more."""
        for replica in self.runner.extents():
            if replica.place != DISK:
                self._pin_changed(replica.key, replica.place, False)
                try:
                    self._feed(EvictRequested(at_s=self._clock(), key=replica.key, place=replica.place, drain=True))
                except InUseError as error:
                    log.warning("%s at %s is not purged: %s", replica.key[:16], replica.place, error)
        self._shell.wait_for(self._is_purged, timeout_s=30.0)

    def _is_purged(self) -> bool:
        return all(replica.place == DISK for replica in self.runner.extents())

    # -- sessions and requests -------------------------------------------------------------------------------------

    def begin_session(self) -> int:
        """Begin the session of a client that connected; return its number."""
        return self._shell.begin_session()

    def end_session(self, session: int) -> None:
        """End the session of a client: its leases close, its requests are refused. Idempotent."""
        self._opens.lookups.end_session(session)
        self._shell.end_session(session)

    def _keep_alive_of(self, key: str, place: Place) -> float | None:
        """Return the longest keep-alive, in seconds, that the manifests of an image's names state; None for no end."""
        if place is DISK:
            return STAYS.seconds
        stated = [json.loads(text)["residency"]["keep_alive_s"] for text in self.catalog.manifests_of(key)]
        longest = None if None in stated else max(stated, default=None)
        return longest if longest is not None else self._keep_alive_s

    def tell_upgrades_to(self, tell: Callable[[int, str], None]) -> None:
        """Have `tell` called once for each session that reads an image from disk, when it lies in shared memory, too.

        Args:
            tell: Takes the session and the key of the image.
        """
        self._shell.upgraded = tell

    def taken_up(self, session: int, key: str) -> None:
        """Note that a session holds an image on disk again, as before a restart: it may lie in shared memory by now."""
        for each in self._shell.upgradable(key, session):
            self._shell.upgraded(each, key)

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

    def evict_image(
        self, key: str, place: Place | None = None, *, drain: bool = False, timeout_s: float = 60.0, name: str = ""
    ) -> list[Place]:
        """Free an image's replicas by its whole key; errors call it `name`. See `evict`."""
        there = [replica.id for replica in self._shell.places_of(key) if place in (None, replica.place)]
        for replica in there:
            try:
                self._feed(EvictRequested(at_s=self._clock(), key=key, place=replica.place, drain=drain))
            except InUseError as error:
                raise InUseError(f"{name or key[:16]}: {error}") from error
        self._shell.wait_for(lambda: all(map(self._settled, there)), timeout_s)
        return [replica.place for replica in there]

    def _settled(self, evicted: ReplicaId) -> bool:
        """Return whether an evicted replica is gone, or waits for its readers. Its image may have been loaded again."""
        replica = self.residency.find(evicted.key, evicted.place)
        return replica is None or replica.id != evicted or replica.held

    def pin(self, name: str, place: Place, *, pinned: bool) -> None:
        """Pin or unpin; that is kept over restarts, and an unpin outlives the manifest's `pin`. Pinning does not load.

        Raises NotSupportedError for a place without pins, ModelNotFoundError, TooLargeError before an artifact is read
        whose image the place can never hold, or what reading the artifact raises.
        """
        self.pins.check(place)
        sizes = SizesAt(lambda nbytes: self._shell.never_lies_at(nbytes, place))
        key = self.key_of(name) if not pinned else self.resolver.resolve(name, Reading(sizes=sizes)).key
        self.pins.set(name, key, place, pinned=pinned)

    def _pin_changed(self, key: str, place: Place, pinned: bool) -> None:
        self._feed(PinChanged(at_s=self._clock(), key=key, place=place, pinned=pinned))

    def manifest_changed(self, name: str) -> None:
        """Make lookups of a name under its old manifest count no more."""
        known = self.resolver.remembered(name)
        self.resolver.forget(name)
        if known is not None:
            self._feed(ManifestChanged(at_s=self._clock(), key=known.key))

    def retire(self, name: str) -> None:
        """Retire the image of a name that goes, after its last lease, if no other name stands for it."""
        key = self.catalog.key_of(name)
        self.resolver.forget(name)
        self.pins.forget(name)
        if key is not None:
            self._retire_image(key, name)

    def _retire_image(self, key: str, name: str) -> None:
        """Free an image that no name stands for, each replica after its last lease."""
        if self.catalog.names_of(key):
            return
        for replica in self._shell.places_of(key):
            try:
                self._feed(EvictRequested(at_s=self._clock(), key=key, place=replica.place, drain=True))
            except TrimsError as error:
                log.warning("%s stays at %s for now: %s", name, replica.place, error)

    def report_broken(self, key: str, place: Place, generation: int, reason: str) -> None:
        """Report that a replica's bytes turned out wrong."""
        self._feed(ReplicaBroken(at_s=self._clock(), key=key, place=place, generation=generation, reason=reason))

    def find_format(self, name: str, timeout_s: float = _LOOK_S) -> str:
        """Return the format of a model's artifact, found by its first bytes; empty if that fails or takes longer.

        Safe where a file system may hang: a worker of its mount point looks, and this waits at most `timeout_s`
        seconds.
        """
        found: list[str] = []
        over = threading.Event()

        def look() -> None:
            try:
                found.append(self.resolver.find_format(name))
            except (TrimsError, OSError) as error:
                log.debug("%s: its format is not known yet: %s", name, error)
            finally:
                over.set()

        if self._readers.of(self.resolver.where(name)).submit(look):
            over.wait(timeout_s)
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
        name = f"{FILE_PREFIX}{name}" if name.startswith("/") else name
        known = self.resolver.remembered(name)
        key = known.key if known else self.catalog.key_of(name)
        if key is None and _KEY_BEGINS.fullmatch(name):
            key = self._key_that_begins(name)
        if key is None:
            self.resolver.manifest(name)  # raises if there is no such model
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
