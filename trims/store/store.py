"""The store: names in, leases out. It serialises residency, carries its instructions out and answers whoever asked.

One lock guards the books; nothing slow happens under it, and answers are given after it is released. Not covered:
sockets (`trims.daemon`), bytes (`runner`), decisions (`trims.core.residency`).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from trims.core.errors import (
    CapacityError,
    DigestMismatchError,
    ImageError,
    InternalError,
    LostPeerError,
    ModelNotFoundError,
    TrimsError,
)
from trims.core.events import (
    Abandon,
    Changed,
    Closed,
    DrainRequested,
    Event,
    EvictRequested,
    Fill,
    Filled,
    FillFailed,
    Free,
    Grant,
    Instruction,
    Measure,
    PinChanged,
    Ready,
    Refuse,
    ReplicaBroken,
    Requested,
    SessionEnded,
    Tick,
    WaiterLeft,
)
from trims.core.lease import Waiter
from trims.core.place import DISK, Place
from trims.core.residency import Residency
from trims.store.adoption import adoptable
from trims.store.asks import Ask, Granted, Loaded, Outcome, Pending
from trims.store.catalog import ImageRecord
from trims.store.lookups import Lookups
from trims.store.runner import Job, Progress, Runner
from trims.store.ticker import Ticker
from trims.store.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.core.policy import Policy
    from trims.formats.base import Limits
    from trims.store.catalog import Catalog
    from trims.store.resolve import Resolved, Resolver
    from trims.tiers.base import Tier
    from trims.trace.spans import Tracer

log = logging.getLogger(__name__)
_REMEMBERED_IMAGES = 4096


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
        self.residency = Residency({place: tier.capacity_bytes for place, tier in self.tiers.items()}, policies)
        self.runner = Runner(self.tiers, limits, tracer, self._feed, workers=workers, converters=converters)
        self._keep_alive_s = keep_alive_s
        self._verify = verify
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tickets = itertools.count(1)
        self._session_numbers = itertools.count(1)
        self._sessions: set[int] = set()
        self._asks: dict[int, Ask] = {}
        self._images: dict[str, Resolved] = {}
        self._lookups = Lookups(resolver, self._found)
        self.watchers = Watchers(self.counters)
        self._ticker = Ticker(self._next_due_s, self._tick)
        self._bindings: dict[type[Instruction], Callable[..., Callable[[], None] | None]] = {
            Grant: self._bind_grant,
            Ready: self._bind_ready,
            Refuse: self._bind_refuse,
            Measure: self._bind_measure,
            Fill: self._bind_fill,
            Abandon: lambda it: lambda: self.runner.abandon(Job(it.key, it.place, it.generation)),
            Free: self._bind_free,
            Changed: self.watchers.tell,
        }

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
        left = self._lookups.stop()
        with self._lock:
            left += self._asks.values()
            self._asks.clear()
        for ask in left:
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
        with self._changed:
            self._changed.wait_for(
                lambda: all(job.place == DISK for job in self.runner.extents()),
                timeout=30.0,
            )

    # -- sessions and requests -------------------------------------------------------------------------------------

    def begin_session(self) -> int:
        """A client connected."""
        with self._lock:
            number = next(self._session_numbers)
            self._sessions.add(number)
            return number

    def end_session(self, session: int) -> None:
        """The client went away: its leases close, its requests are dropped. Idempotent."""
        with self._lock:
            self._sessions.discard(session)
        self._feed(SessionEnded(at_s=time.monotonic(), session=session))
        with self._lock:
            for ticket in [ask.ticket for ask in self._asks.values() if ask.session == session]:
                del self._asks[ticket]

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
        if deadline_s is not None:
            self._ticker.look_again()

    def load(self, name: str, place: Place | None = None, deadline_s: float | None = None) -> Pending:
        """Have a model loaded; returns what to wait on."""
        pending = Pending()
        self.open(name, pending.set, place=place, deadline_s=deadline_s, lease=False)
        return pending

    def resume(self, session: int, key: str, place: Place, answer: Callable[[Outcome], None]) -> None:
        """Lease exactly this image if it is sealed there now; never loads."""
        ask = Ask(next(self._tickets), f"key:{key[:16]}", session, place, None, True, answer)
        with self._lock:
            replica = self.residency.find(key, place)
            here = replica is not None and self.runner.extent(Job(key, place, replica.generation)) is not None
        if not here:
            answer(ModelNotFoundError(f"the image {key[:16]} is not resident at {place} any more; open it by name"))
            return
        self._ask_residency(ask, key, place, None)

    def close(self, session: int, lease: int) -> None:
        """Give a lease back. Idempotent; another session's lease is not touched."""
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
        self._remember(resolved)
        keep = resolved.manifest.residency
        place = ask.place or keep.place
        keep_alive_s = self._keep_alive_for(place, keep.keep_alive_s)
        if keep.pin and (resolved.key, place) not in self.residency.room.pins:
            self._pin_as_stated(resolved, place)
        self._ask_residency(ask, resolved.key, place, keep_alive_s)

    def _pin_as_stated(self, resolved: Resolved, place: Place) -> None:
        try:
            self.catalog.pin(resolved.name, str(place), pinned=True)
            self._pins_changed(resolved.key, place)
        except CapacityError as error:  # the next open tries again
            log.warning("%s is not pinned as its manifest says: %s", resolved.name, error)

    def _remember(self, resolved: Resolved) -> None:
        """Keep what a fill may need; of images that are neither resident nor asked for, only the latest."""
        with self._lock:
            self._images[resolved.key] = resolved
            if len(self._images) > _REMEMBERED_IMAGES:
                wanted = {key for key, _ in self.residency.replicas} | {resolved.key}
                wanted.update(ask.resolved.key for ask in self._asks.values() if ask.resolved)
                self._images = {key: image for key, image in self._images.items() if key in wanted}

    def _keep_alive_for(self, place: Place, stated_s: float | None) -> float | None:
        """Keep-alive is about memory: what lies on disk stays until the disk tier needs the room."""
        if place == DISK:
            return None
        return stated_s if stated_s is not None else self._keep_alive_s

    def _ask_residency(self, ask: Ask, key: str, place: Place, keep_alive_s: float | None) -> None:
        waiter = Waiter(ask.ticket, ask.session, ask.wants_lease, ask.deadline_at_s)
        event = Requested(at_s=time.monotonic(), key=key, place=place, waiter=waiter, keep_alive_s=keep_alive_s)
        with self._lock:
            gone = ask.session is not None and ask.session not in self._sessions
            if not gone:
                self._asks[ask.ticket] = ask
                work = self._handle(event)
                waits = ask.ticket in self._asks and ask.deadline_at_s is not None
        if gone:
            ask.answer(LostPeerError("the session ended before its request was looked into"))
            return
        for do in work:
            do()
        if waits:
            self._ticker.look_again()

    # -- the shell round residency ---------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        """Let an event happen, then do what follows from it."""
        if isinstance(event, ReplicaBroken):
            self.counters["broken"] += 1
            log.error("replica %s at %s is broken: %s", event.key[:16], event.place, event.reason)
        with self._lock:
            work = self._handle(event)
        for do in work:
            do()
        if isinstance(event, Filled):
            self._after_fill(event)

    def _handle(self, event: Event) -> list[Callable[[], None]]:
        """Under the lock: decide, and bind what must be looked up before the books change again."""
        instructions = self.residency.handle(event)
        if self._verify:
            self.residency.validate()
        bound = [self._bindings[type(instruction)](instruction) for instruction in instructions]
        if instructions:
            self._changed.notify_all()
        return [work for work in bound if work is not None]

    def _bind_grant(self, it: Grant) -> Callable[[], None]:
        ask = self._asks.pop(it.ticket)
        lease = it.lease
        extent = self.runner.extent(Job(lease.key, lease.place, lease.generation))
        self.counters["warm" if it.warm else "cold"] += 1
        if extent is None:
            return lambda: ask.answer(InternalError(f"{lease.key[:16]} at {lease.place} is sealed but has no memory"))
        granted = Granted(
            lease.number,
            lease.key,
            lease.place,
            lease.generation,
            it.nbytes,
            extent.digest,
            extent.fd,
            it.warm,
        )
        return lambda: ask.answer(granted)

    def _bind_ready(self, it: Ready) -> Callable[[], None] | None:
        ask = self._asks.pop(it.ticket, None)
        return None if ask is None else lambda: ask.answer(Loaded(it.key, it.place, it.nbytes))

    def _bind_refuse(self, it: Refuse) -> Callable[[], None] | None:
        ask = self._asks.pop(it.ticket, None)
        if ask is None:
            return None
        if isinstance(it.error, ImageError | DigestMismatchError) and not ask.retried and ask.resolved is not None:
            # A broken replica is not the asker's fault: it has been retired, the artifact is still there.
            ask.retried = True
            resolved = ask.resolved
            return lambda: self._request(ask, resolved)
        self.counters[f"refused.{it.error.code}"] += 1
        return lambda: ask.answer(it.error)

    def _bind_measure(self, it: Measure) -> Callable[[], None]:
        job, resolved = Job(it.key, it.place, it.generation), self._images.get(it.key)
        if resolved is None:
            error = ModelNotFoundError(
                f"the artifact of image {it.key[:16]} is not known to this daemon; open it by name"
            )
            failed = FillFailed(
                at_s=time.monotonic(), key=it.key, place=it.place, generation=it.generation, error=error
            )
            return lambda: self._feed(failed)
        return lambda: self.runner.measure(job, resolved)

    def _bind_fill(self, it: Fill) -> Callable[[], None]:
        job = Job(it.key, it.place, it.generation)
        self.counters[f"fills.{it.place}"] += 1
        source = None
        if it.source is not None:
            replica = self.residency.find(it.key, it.source)
            assert replica is not None, "residency has borrowed it"
            source = Job(it.key, it.source, replica.generation)
        return lambda: self.runner.fill(job, it.nbytes, source)

    def _bind_free(self, it: Free) -> Callable[[], None]:
        self.counters[f"evictions.{it.place}" if it.evicted else f"frees.{it.place}"] += 1
        return lambda: self.runner.free(Job(it.key, it.place, it.generation))

    def _after_fill(self, event: Filled) -> None:
        """Remember the image; keep it on disk if making it was dear."""
        resolved = self._images.get(event.key)
        replica = self.residency.find(event.key, event.place)
        if resolved is None or replica is None:
            return
        self.counters[f"filled_bytes.{event.place}"] += replica.nbytes
        if self.catalog.image(event.key) is None:
            record = ImageRecord(event.key, resolved.name, resolved.recipe, replica.nbytes, event.cost_s)
            self.catalog.remember_image(record)
        persist = resolved.manifest.residency.persist
        wanted = persist == "always" or (persist == "auto" and resolved.converted)
        if wanted and event.place != DISK and DISK in self.tiers and self.residency.find(event.key, DISK) is None:
            ask = Ask(next(self._tickets), resolved.name, None, DISK, None, False, _log_outcome(resolved.name))
            self._ask_residency(ask, event.key, DISK, None)

    # -- orders ----------------------------------------------------------------------------------------------------

    def evict(
        self, name: str, place: Place | None = None, *, drain: bool = False, timeout_s: float = 60.0
    ) -> list[Place]:
        """Free a model's replicas; returns where it was. Raises InUseError unless `drain`, ModelNotFoundError.

        With `drain` a leased replica goes when its last lease closes, and this returns at once.
        """
        key = self.key_of(name)
        places = [replica.place for replica in self.residency.places_of(key) if place in (None, replica.place)]
        for there in places:
            self._feed(EvictRequested(at_s=time.monotonic(), key=key, place=there, drain=drain))
        with self._changed:
            self._changed.wait_for(lambda: all(self._settled(key, there) for there in places), timeout=timeout_s)
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
        for replica in self.residency.places_of(key):
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
        return self._lock

    # -- time ------------------------------------------------------------------------------------------------------

    def _next_due_s(self) -> float | None:
        with self._lock:
            due = (self.residency.next_due_s(), self._lookups.next_due_s())
        return min((moment for moment in due if moment is not None), default=None)

    def _tick(self, now_s: float) -> None:
        self._lookups.expire(now_s)
        self._feed(Tick(at_s=now_s))


def _log_outcome(name: str) -> Callable[[Outcome], None]:
    def tell(outcome: Outcome) -> None:
        if isinstance(outcome, TrimsError):
            log.warning("%s is not kept on disk: %s", name, outcome)

    return tell
