"""The store: names in, leases out. Life, sessions, orders and time of one daemon's models.

Not covered: sockets (`trims.daemon`), how events become work and answers (`shell`), bytes (`runner`), decisions
(`trims.core.residency`).
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import Counter
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, LostPeerError, ModelNotFoundError, TrimsError
from trims.core.events import (
    Closed,
    DrainRequested,
    Event,
    EvictRequested,
    Filled,
    PinChanged,
    ReplicaBroken,
    Tick,
    WaiterLeft,
)
from trims.core.place import DISK, Place
from trims.core.residency import Residency
from trims.store.adoption import adoptable
from trims.store.asks import Ask, Outcome, Pending, log_failure
from trims.store.catalog import ImageRecord
from trims.store.device_leases import DeviceLeases
from trims.store.lookups import Lookups
from trims.store.runner import Job, Progress, Runner
from trims.store.shell import Shell
from trims.store.ticker import Ticker
from trims.store.watchers import Watchers
from trims.store.working import WorkingMemory
from trims.tiers.base import DeviceTier

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from trims.core.policy import Policy
    from trims.formats.base import Limits
    from trims.store.catalog import Catalog
    from trims.store.resolve import Resolved, Resolver
    from trims.tiers.base import Tier
    from trims.trace.spans import Tracer

log = logging.getLogger(__name__)


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
        workers: Fills that run at once.
        converters: Conversions that run at once.
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
    ) -> None:
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
        )
        self.watchers = Watchers(self.counters)
        self.runner = Runner(self.tiers, limits, tracer, self._feed, workers=workers, converters=converters)
        self._shell = Shell(
            self.residency,
            self.runner,
            self.watchers,
            self.counters,
            again=self._request,
            filled=self._after_fill,
            verify=verify,
        )
        self._working = WorkingMemory(catalog)
        self._keep_alive_s = keep_alive_s
        self.device_leases = DeviceLeases(
            devices,
            self._shell,
            self.residency,
            self._working,
            counters=self.counters,
            have=self._have,
            lease=self.resume,
        )
        self._tickets = itertools.count(1)
        self._lookups = Lookups(resolver, self._found)
        self._ticker = Ticker(self._next_due_s, self._tick)

    def _feed(self, event: Event) -> None:
        """Let an event happen: an order's, or one that the runner reports."""
        if isinstance(event, Filled):
            self._remember(event)
        self._shell.feed(event)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Adopt what an earlier daemon left, then begin to keep time."""
        for tier in self.tiers.values():
            found = adoptable(tier, self.catalog, self.residency, lambda place: self._keep_alive_for(place, None))
            for event, extent in found:
                self._feed(event)
                replica = self.residency.find(event.key, event.place)
                assert replica is not None, "it was adopted a moment ago"
                self.runner.adopt(Job(event.key, event.place, replica.generation), extent)
                self.counters["adopted"] += 1
        self.device_leases.guard_adopted(time.monotonic())
        for name, place in self.catalog.pins():
            key = self.catalog.key_of(name)
            if key is not None:
                self._feed(PinChanged(at_s=time.monotonic(), key=key, place=Place.parse(place), pinned=True))
        self._ticker.start()

    def drain(self) -> None:
        """Take no new opens from now on."""
        self._feed(DrainRequested(at_s=time.monotonic()))

    def stop(self, *, purge: bool = False) -> None:
        """End: whoever waits is told, workers finish. Replicas stay for the next daemon unless `purge`."""
        self.drain()
        self._ticker.stop()
        self.device_leases.expire(math.inf)
        for ask in self._lookups.stop() + self._shell.take_asks():
            self._feed(WaiterLeft(at_s=time.monotonic(), ticket=ask.ticket))
            ask.answer(LostPeerError("the daemon is shutting down"))
        self.runner.finish()
        if purge:
            self._purge()
        self.runner.stop()

    def _purge(self) -> None:
        """Free every replica whose memory does not survive a reboot anyway. Nothing is being filled any more."""
        for job in self.runner.extents():
            if job.place != DISK:
                self._feed(PinChanged(at_s=time.monotonic(), key=job.key, place=job.place, pinned=False))
                self._feed(EvictRequested(at_s=time.monotonic(), key=job.key, place=job.place, drain=True))
        self._shell.wait_for(lambda: all(job.place == DISK for job in self.runner.extents()), timeout_s=30.0)

    # -- sessions and requests -------------------------------------------------------------------------------------

    def begin_session(self) -> int:
        """A client connected."""
        return self._shell.begin_session()

    def end_session(self, session: int) -> None:
        """The client went away: its leases close, its requests are dropped. Idempotent."""
        self._shell.end_session(session)

    def open(
        self,
        name: str,
        answer: Callable[[Outcome], None],
        *,
        session: int | None = None,
        place: Place | None = None,
        deadline_s: float | None = None,
        lease: bool = True,
    ) -> None:
        """Ask for a model. `answer` is called once: at once if it is resident, else when it is or cannot be.

        Args:
            name: A registered model, or `file:` and an absolute path.
            answer: Gets Granted, Loaded (without `lease`) or an error.
            session: Who asks; leases need one.
            place: Where; None for what the manifest says.
            deadline_s: Seconds to wait for load and room; None waits for a load, but not for leases of others.
            lease: False to have it loaded only.
        """
        deadline_at_s = None if deadline_s is None else time.monotonic() + deadline_s
        ask = Ask(next(self._tickets), name, session, place, deadline_at_s, lease, answer)
        self.counters["opens" if lease else "prefetches"] += 1
        resolved = self.resolver.cached(name)
        if resolved is not None:
            self._request(ask, resolved)
            return
        self._lookups.add(ask)
        if deadline_at_s is not None:
            self._ticker.look_again(deadline_at_s)

    def load(self, name: str, place: Place | None = None, deadline_s: float | None = None) -> Pending:
        """Have a model loaded; returns what to wait on."""
        pending = Pending()
        self.open(name, pending.set, place=place, deadline_s=deadline_s, lease=False)
        return pending

    def resume(self, session: int, key: str, place: Place, answer: Callable[[Outcome], None]) -> None:
        """Lease exactly this image if it is sealed there now; never loads."""
        ask = Ask(next(self._tickets), f"key:{key[:16]}", session, place, None, True, answer)
        if not self._shell.is_resident(key, place):
            answer(ModelNotFoundError(f"the image {key[:16]} is not resident at {place} any more; open it by name"))
            return
        self._ask(ask, key, place, None)

    def close(self, session: int, lease: int) -> None:
        """Give a lease back. Idempotent; another session's lease is not touched.

        Where nothing but the session's end shows that a borrower is gone, the lease stays until then.
        """
        if self.device_leases.keeps(session, lease):
            self.counters["leases_kept"] += 1
            return
        self._feed(Closed(at_s=time.monotonic(), lease=lease, session=session))

    def _found(self, ask: Ask, result: Resolved | TrimsError) -> None:
        """A name has been looked into."""
        if isinstance(result, TrimsError):
            self.counters[f"refused.{result.code}"] += 1
            ask.answer(result)
        else:
            self._request(ask, result)

    def _request(self, ask: Ask, resolved: Resolved) -> None:
        ask.resolved = resolved
        self._shell.remember(resolved)
        keep = resolved.manifest.residency
        place = ask.place or keep.place
        keep_alive_s = self._keep_alive_for(place, keep.keep_alive_s)
        if keep.pin and (resolved.key, place) not in self.residency.room.pins:
            self._pin_as_stated(resolved, place)
        self._working.stated(resolved)
        self._ask(ask, resolved.key, place, keep_alive_s)

    def _pin_as_stated(self, resolved: Resolved, place: Place) -> None:
        try:
            self.catalog.pin(resolved.name, str(place), pinned=True)
            self._pins_changed(resolved.key, place)
        except CapacityError as error:  # the next open tries again
            log.warning("%s is not pinned as its manifest says: %s", resolved.name, error)

    def _keep_alive_for(self, place: Place, stated_s: float | None) -> float | None:
        """Keep-alive is about memory: what lies on disk stays until the disk tier needs the room."""
        if place == DISK:
            return None
        return stated_s if stated_s is not None else self._keep_alive_s

    def _ask(self, ask: Ask, key: str, place: Place, keep_alive_s: float | None) -> None:
        waits = self._shell.ask(ask, key, place, keep_alive_s, self._working.of(key))
        if waits and ask.deadline_at_s is not None:
            self._ticker.look_again(ask.deadline_at_s)

    def _remember(self, event: Filled) -> None:
        """Before anybody reads the image: the next daemon adopts only what it knows of, whenever this one dies.

        Never raises: who waits for the image must hear of it whatever becomes of the catalog.
        """
        resolved = self._shell.image(event.key)
        replica = self.residency.find(event.key, event.place)
        if resolved is None or replica is None:
            return
        try:
            if self.catalog.image(event.key) is None:
                record = ImageRecord(event.key, resolved.name, resolved.recipe, replica.nbytes, event.cost_s)
                self.catalog.remember_image(record)
        except Exception:
            log.exception("%s is not remembered: the next daemon loads it again", resolved.name)

    def _after_fill(self, event: Filled) -> None:
        """Keep the image on disk if making it was dear."""
        resolved = self._shell.image(event.key)
        replica = self.residency.find(event.key, event.place)
        if resolved is None or replica is None:
            return
        self.counters[f"filled_bytes.{event.place}"] += replica.nbytes
        persist = resolved.manifest.residency.persist
        wanted = persist == "always" or (persist == "auto" and resolved.converted)
        if wanted and event.place != DISK and DISK in self.tiers and self.residency.find(event.key, DISK) is None:
            self._have(event.key, DISK, None, log_failure(f"{resolved.name} is not kept on disk"))

    def _have(self, key: str, place: Place, keep_alive_s: float | None, answer: Callable[[Outcome], None]) -> None:
        """Have an image somewhere for our own sake."""
        ask = Ask(next(self._tickets), f"key:{key[:16]}", None, place, None, False, answer)
        self._ask(ask, key, place, keep_alive_s)

    # -- orders ----------------------------------------------------------------------------------------------------

    def evict(
        self, name: str, place: Place | None = None, *, drain: bool = False, timeout_s: float = 60.0
    ) -> list[Place]:
        """Free a model's replicas; returns where it was. Raises InUseError unless `drain`, ModelNotFoundError.

        With `drain` a leased replica goes when its last lease closes, and this returns at once.
        """
        key = self.key_of(name)
        places = [replica.place for replica in self._shell.places_of(key) if place in (None, replica.place)]
        for there in places:
            self._feed(EvictRequested(at_s=time.monotonic(), key=key, place=there, drain=drain))
        self._shell.wait_for(lambda: all(self._settled(key, there) for there in places), timeout_s)
        return places

    def _settled(self, key: str, place: Place) -> bool:
        replica = self.residency.find(key, place)
        return replica is None or replica.held

    def pin(self, name: str, place: Place, *, pinned: bool) -> None:
        """Pin or unpin; the pin is kept over restarts. Pinning does not load."""
        key = self.key_of(name) if not pinned else self.resolver.resolve(name).key
        self.catalog.pin(name, str(place), pinned=pinned)
        self._pins_changed(key, place)

    def _pins_changed(self, key: str, place: Place) -> None:
        """An image is pinned for as long as one of its names is."""
        pins = self.catalog.pins()
        pinned = any((name, str(place)) in pins for name in self.catalog.names_of(key))
        self._feed(PinChanged(at_s=time.monotonic(), key=key, place=place, pinned=pinned))

    def retire(self, name: str) -> None:
        """The name goes: its image too, once nobody reads it, if no other name stands for it."""
        key = self.catalog.key_of(name)
        self.catalog.forget(name)
        self.resolver.forget(name)
        if key is None:
            return
        for place in self.tiers:
            self._pins_changed(key, place)
        if self.catalog.names_of(key):
            return
        for replica in self._shell.places_of(key):
            try:
                self._feed(EvictRequested(at_s=time.monotonic(), key=key, place=replica.place, drain=True))
            except TrimsError as error:
                log.warning("%s stays at %s for now: %s", name, replica.place, error)

    def report_broken(self, key: str, place: Place, generation: int, reason: str) -> None:
        """A replica's bytes turned out wrong."""
        self._feed(ReplicaBroken(at_s=time.monotonic(), key=key, place=place, generation=generation, reason=reason))

    # -- questions -------------------------------------------------------------------------------------------------

    def key_of(self, name: str) -> str:
        """The key a name stands for. Raises ModelNotFoundError if it was never loaded nor registered."""
        known = self.resolver.cached(name)
        key = known.key if known else self.catalog.key_of(name)
        if key is None:
            self.resolver.manifest(name)  # raises if there is no such model
            raise ModelNotFoundError(f"{name!r} is registered but was never loaded here; `trims load {name}` does")
        return key

    def progress(self, name: str, place: Place) -> Progress | None:
        """How far a running load is."""
        known = self.resolver.cached(name)
        return self.runner.progress(known.key, place) if known else None

    def locked(self) -> threading.Lock:
        """The lock of the books, for reading several of them at one moment."""
        return self._shell.lock

    # -- time ------------------------------------------------------------------------------------------------------

    def _next_due_s(self) -> float | None:
        with self._shell.lock:
            due = (self.residency.next_due_s(), self._lookups.next_due_s(), self.device_leases.due_s)
        return min((moment for moment in due if moment is not None), default=None)

    def _tick(self, now_s: float) -> None:
        self._lookups.expire(now_s)
        self.device_leases.expire(now_s)
        self._feed(Tick(at_s=now_s))
