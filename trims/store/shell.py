"""The shell round residency: events go in one after the other, what they lead to is carried out, requests are answered.

One lock guards the books. Under it an event is decided, and what must be looked up before the books change again is
bound; what takes time, answers included, is done after it is released. Not covered: names and orders (`store`), bytes
(`runner`), decisions (`trims.core.residency.residency`).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactNotFoundError,
    DeviceLostError,
    DigestMismatchError,
    ImageError,
    InternalError,
    InUseError,
    ModelNotFoundError,
    NoSpaceError,
    NotInPlaceError,
    TooLargeError,
)
from trims.core.lease import Waiter
from trims.core.place import CLOUD, CPU, DISK, TierKind
from trims.core.replica import ReplicaId, State
from trims.core.residency.events import (
    Abandon,
    Changed,
    Closed,
    Event,
    Failed,
    Fill,
    Filled,
    FillFailed,
    Free,
    Grant,
    Instruction,
    Lost,
    Measure,
    MeasureFailed,
    RaisePriority,
    Ready,
    Refuse,
    ReplicaBroken,
    Requested,
    SessionEnded,
)
from trims.store.pending_requests import Granted, Loaded, PendingRequest, session_ended
from trims.trace.spans import is_on

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from trims.core.errors import TrimsError
    from trims.core.lease import Lease
    from trims.core.place import Place
    from trims.core.replica import Replica
    from trims.core.residency.residency import Residency
    from trims.store.fill.runner import Runner
    from trims.store.resolve.resolved import Resolved
    from trims.store.session_notices import SessionNotices
    from trims.store.watchers import Watchers
    from trims.tiers.base import Extent
    from trims.trace.context import SpanContext

log = logging.getLogger(__name__)
_REMEMBERED_IMAGES = 4096
#: Asks on behalf of no session and no tenant.
_NOBODY = Waiter(0, None, wants_lease=False, deadline_at_s=None, internal=True)


class Shell:
    """Residency, and the request behind each of its waiters.

    Args:
        runner: Does what takes time; its reports must be fed.
        watchers: Get every change of state.
        notices: Get what sessions are to know of their leases.
        verify: Check every invariant after every event.

    Attributes:
        lock: Guards the books; hold it to read several of them at one moment.
    """

    def __init__(
        self,
        residency: Residency,
        runner: Runner,
        watchers: Watchers,
        notices: SessionNotices,
        counters: Counter[str],
        *,
        verify: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._residency = residency
        self._runner = runner
        self.notices = notices
        self._counters = counters
        self._verify = verify
        self._clock = clock
        self._again: Callable[[PendingRequest, TrimsError], None] = lambda ask, error: ask.answer(error)
        self._filled: Callable[[Filled], None] = lambda event: None  # noqa: ARG005 - nothing follows
        self._session_numbers = itertools.count(1)
        self._sessions: set[int] = set()
        #: Requests by ticket. Each has a waiter of that ticket in residency until it is taken to be answered.
        self._asks: dict[int, PendingRequest] = {}
        self._images: dict[str, Resolved] = {}
        self._most_images = _REMEMBERED_IMAGES
        self._bindings: dict[type[Instruction], Callable[..., Callable[[], None] | None]] = {
            Grant: self._bind_grant,
            Ready: self._bind_ready,
            Refuse: self._bind_refuse,
            Measure: self._bind_measure,
            Fill: self._bind_fill,
            RaisePriority: lambda it: lambda: runner.raise_priority(ReplicaId(it.key, it.place, it.generation)),
            Abandon: lambda it: lambda: runner.abandon(ReplicaId(it.key, it.place, it.generation)),
            Free: self._bind_free,
            Lost: self._bind_lost,
            Failed: self._bind_failed,
            Changed: watchers.notify,
        }

    def connect(self, *, again: Callable[[PendingRequest, TrimsError], None], filled: Callable[[Filled], None]) -> None:
        """Name who takes what the shell does not do itself; both are called without the lock.

        Args:
            again: Takes a request that met an error which is not its own fault. Without it the error is its answer.
            filled: Takes every fill that succeeded, after its waiters were answered.
        """
        self._again, self._filled = again, filled

    # -- events in -------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Let an event happen, then do what follows from it.

        Raises:
            InUseError: An eviction without `drain` met a lease, a copy or a fill; nothing changed.
            NotSupportedError: A pin at a place without a tier; nothing changed.
        """
        if isinstance(event, ReplicaBroken):
            self._counters["broken"] += 1
            log.error("replica %s at %s is broken: %s", event.key[:16], event.place, event.reason)
        if isinstance(event, FillFailed) and isinstance(event.error, NoSpaceError):
            self._counters[f"full.{event.place}"] += 1
            log.warning("%s has less room than its capacity says, idle images leave: %s", event.place, event.error)
        with self.lock:
            work = self._handle(event)
        for do in work:
            do()
        if isinstance(event, Filled):
            self._filled(event)

    def ask(self, ask: PendingRequest, event: Requested) -> bool:
        """Ask residency for an image; the answer comes now or later. Return whether the request waits."""
        waits = False
        with self.lock:
            gone = ask.waiter.session is not None and ask.waiter.session not in self._sessions
            if not gone:
                self._asks[ask.waiter.ticket] = ask
                if ask.resolved is not None and self._images.get(ask.resolved.key) is not ask.resolved:
                    self._remember(ask.resolved)
                work = self._handle(event)
                waits = ask.waiter.ticket in self._asks
        if gone:
            ask.answer(session_ended(ask))
            return False
        for do in work:
            do()
        return waits

    def trace_of(self, key: str) -> SpanContext | None:
        """Return the span of a request that waits for an image; None if there is none, or none is recorded.

        Looks at all requests that wait, and takes no lock: what is filled is about to be read, or is in a trace.
        """
        if not is_on():
            return None
        waiting = [ask for ask in list(self._asks.values()) if ask.trace is not None and ask.resolved is not None]
        return next((ask.trace for ask in waiting if key in _keys_of(ask)), None)

    def _remember(self, resolved: Resolved) -> None:
        """Keep what a fill may need; of images that are neither resident nor asked for, only the latest."""
        self._images[resolved.key] = resolved
        if resolved.in_place is not None:
            self._images[resolved.in_place] = resolved
        if len(self._images) > self._most_images:
            wanted = {key for key, _ in self._residency.replicas}
            asked = [ask.resolved for ask in self._asks.values() if ask.resolved is not None] + [resolved]
            wanted.update(key for each in asked for key in (each.key, each.in_place) if key is not None)
            self._images = {key: image for key, image in self._images.items() if key in wanted}
            # Prune again only after the table doubles, so pruning is amortised O(1).
            self._most_images = max(_REMEMBERED_IMAGES, 2 * len(self._images))

    def begin_session(self) -> int:
        """Begin the session of a client that connected; return its number."""
        with self.lock:
            number = next(self._session_numbers)
            self._sessions.add(number)
            return number

    def end_session(self, session: int) -> None:
        """End the session of a client: its leases close, its requests are refused. Idempotent."""
        with self.lock:
            self._sessions.discard(session)
            tickets = self._residency.waiters.of_session(session)
            refused = [self._asks.pop(ticket) for ticket in tickets if ticket in self._asks]
            work = self._handle(SessionEnded(at_s=self._clock(), session=session))
        for do in work:
            do()
        for ask in refused:
            ask.answer(session_ended(ask))

    def tickets(self) -> list[int]:
        """Return the tickets of all requests that were not answered yet."""
        with self.lock:
            return list(self._asks)

    def take_asks(self) -> list[PendingRequest]:
        """Take all requests that were not answered yet; the caller answers them."""
        with self.lock:
            asks, self._asks = self._asks, {}
            return list(asks.values())

    # -- questions -------------------------------------------------------------------------------------------------

    def places_of(self, key: str) -> list[Replica]:
        """Return all replicas of an image now, fastest place first."""
        with self.lock:
            return self._residency.places_of(key)

    def keys_that_begin(self, beginning: str) -> set[str]:
        """Return the keys of the images in the ledger that begin with `beginning`."""
        with self.lock:
            return {key for key, _ in self._residency.replicas if key.startswith(beginning)}

    def place_of(self, session: int, lease: int) -> Place | None:
        """Return the place that a session's lease is for, or None if it has no such lease."""
        with self.lock:
            found = self._residency.leases.by_number.get(lease)
            return found.place if found is not None and found.session == session else None

    def extent_of(self, session: int, lease: int) -> Extent | None:
        """Return the memory that a session's lease is for, or None if it has no such lease."""
        with self.lock:
            found = self._residency.leases.by_number.get(lease)
            if found is None or found.session != session:
                return None
            return self._runner.sealed.get(ReplicaId(found.key, found.place, found.generation))

    def upgradable(self, key: str, session: int | None = None) -> list[int]:
        """Return sessions that read an image from disk whose same bytes lie in shared memory; all, or one at most."""
        with self.lock:
            on_disk, in_memory = (self._residency.find(key, place) for place in (DISK, CPU))
            if on_disk is None or in_memory is None or in_memory.state is not State.SEALED:
                return []
            extents = [self._runner.sealed.get(each.id) for each in (on_disk, in_memory)]
            if None in extents or len({extent.digest for extent in extents if extent is not None}) > 1:
                return []
            if session is not None:
                return [session] if session in on_disk.readers else []
            return list(on_disk.readers)

    def is_resident(self, key: str, place: Place) -> bool:
        """Return whether the image is sealed there now."""
        with self.lock:
            replica = self._residency.find(key, place)
            return replica is not None and replica.id in self._runner.sealed

    def is_on_host(self, key: str) -> bool:
        """Return whether sessions on this machine can read the image now."""
        with self.lock:
            places = self._residency.places_of(key)
            return any(found.state is State.SEALED and found.place is not CLOUD for found in places)

    def verify_next(self, key: str, place: Place) -> bool:
        """Verify next an image that an earlier daemon left there unverified. Return whether there is one."""
        with self.lock:
            replica = self._residency.find(key, place)
            return replica is not None and self._runner.verify_next(replica.id)

    def never_fits(self, ask: PendingRequest, nbytes: int, stated: Place | None) -> TrimsError | None:
        """Return why an image of at least `nbytes` can never serve a request; None if it may.

        Args:
            nbytes: The least that the image can take.
            stated: The place that the model's manifest states.
        """
        place = ask.place or stated
        if place is None and not (ask.waiter.wants_lease or ask.hint or ask.only_look):
            place = CPU  # what an order to load means
        with self.lock:
            return self._residency.never_fits(nbytes, place, ask.waiter)

    def never_lies_at(self, nbytes: int, place: Place) -> TrimsError | None:
        """Return why an image of at least `nbytes` can never lie at a place, for any client; None if it may."""
        with self.lock:
            return self._residency.never_fits(nbytes, place, _NOBODY)

    def demand_of(self, key: str) -> float:
        """Return how much in demand an image is (see `trims.core.policy.demand`)."""
        with self.lock:
            return self._residency.demand.of(key)

    def carry_demand(self, old: str, new: str) -> None:
        """Move the demand of `old` to `new`: the model is opened under another key from now on."""
        with self.lock:
            self._residency.demand.carry(old, new)

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds` returns true, called under the lock after each change.

        Return False after `timeout_s` seconds.
        """
        with self._changed:
            return self._changed.wait_for(holds, timeout=timeout_s)

    def image(self, key: str) -> Resolved | None:
        """Return what is remembered of an image, or None."""
        return self._images.get(key)

    # -- instructions out ------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> list[Callable[[], None]]:
        """Decide, under the lock, and bind what must be looked up before the books change again."""
        instructions = self._residency.handle(event)
        if self._verify:
            self._residency.validate()
        if instructions:
            self._changed.notify_all()
        work = []
        for instruction in instructions:
            bound = self._bindings[type(instruction)](instruction)
            if bound is not None:
                work.append(bound)
        return work

    def _bind_grant(self, it: Grant) -> Callable[[], None]:
        ask, lease = self._asks.pop(it.ticket), it.lease
        extent = self._runner.sealed.get(ReplicaId(lease.key, lease.place, lease.generation))
        self._counters["warm" if it.warm else "cold"] += 1
        if extent is not None and extent.place is DISK and self._runner.was_touched(extent):
            return lambda: self._take_back(ask, lease)
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
            extent.export,
            extent.pages,
            extent.place is DISK and ask.names_no_place,
            ask.resolved is None,
            "" if ask.resolved is None else ask.resolved.foreign,
        )
        return partial(ask.answer, granted)

    def _take_back(self, ask: PendingRequest, lease: Lease) -> None:
        """Take back a file that was touched since it was sealed: retire it, and serve the request once more."""
        reason = f"the file at {lease.place} was changed or truncated since it was sealed"
        self.feed(Closed(at_s=self._clock(), lease=lease.number, session=lease.session))
        broken = ReplicaBroken(
            at_s=self._clock(), key=lease.key, place=lease.place, generation=lease.generation, reason=reason
        )
        self.feed(broken)
        error = ImageError(f"{reason}; open it again")
        if ask.retried or ask.resolved is None:
            ask.answer(error)
            return
        ask.retried = True
        self._again(ask, error)

    def _bind_ready(self, it: Ready) -> Callable[[], None] | None:
        ask = self._asks.pop(it.ticket, None)
        return None if ask is None else lambda: ask.answer(Loaded(it.key, it.place, it.nbytes))

    def _bind_refuse(self, it: Refuse) -> Callable[[], None] | None:
        ask = self._asks.pop(it.ticket, None)
        if ask is None:
            return None
        again: tuple[type[TrimsError], ...] = (ImageError, DigestMismatchError, ArtifactChangedError)
        if ask.place is None or ask.place.tier is not TierKind.GPU:
            again = (*again, DeviceLostError)  # it was to be copied from there, and may lie elsewhere
        if isinstance(it.error, again) and not ask.retried and ask.resolved is not None:
            # Not the fault of the request: a broken replica has been retired, the artifact or its successor is there.
            ask.retried, ask.met = True, it.error
            return lambda: self._again(ask, it.error)
        if isinstance(it.error, NotInPlaceError) and ask.anywhere and ask.place is None:
            return lambda: self._again(ask, it.error)
        if isinstance(it.error, (InUseError, TooLargeError)) and ask.may_be_converted:
            ask.verified = True  # its own files cannot serve it now; an image of them may
            return lambda: self._again(ask, it.error)
        # An image that has no artifact cannot be made again: the reason is what was wrong with it in the cloud.
        cloud = isinstance(it.error, ArtifactNotFoundError) and ask.resolved is not None and ask.resolved.cloud
        why = ask.met if cloud and ask.met is not None else it.error
        self._counters[f"refused.{why.code}"] += 1
        error = ask.in_words(why)
        return lambda: ask.answer(error)

    def _bind_measure(self, it: Measure) -> Callable[[], None]:
        replica, resolved = ReplicaId(it.key, it.place, it.generation), self._images.get(it.key)
        if resolved is None:
            error = ModelNotFoundError(
                f"the artifact of image {it.key[:16]} is not known to this daemon; open it by name"
            )
            failed = MeasureFailed(
                at_s=self._clock(),
                key=it.key,
                place=it.place,
                generation=it.generation,
                measurement=it.measurement,
                error=error,
            )
            return lambda: self.feed(failed)
        if it.behind:  # here, as in `_bind_fill`
            self._runner.take_time(replica)
        return lambda: self._runner.measure(replica, it.measurement, resolved, it.tenant)

    def _bind_fill(self, it: Fill) -> Callable[[], None]:
        self._counters[f"fills.{it.place}"] += 1
        source = None
        if it.source is not None:
            lent = self._residency.find(it.key, it.source)
            assert lent is not None, "residency has borrowed it"
            source = lent.id
        replica = ReplicaId(it.key, it.place, it.generation)
        if it.behind:  # here, under the lock: a request that joins later must be the one that is heard last
            self._runner.take_time(replica)
        return lambda: self._runner.fill(replica, it.nbytes, source, it.tenant)

    def _bind_lost(self, it: Lost) -> Callable[[], None]:
        self._counters["leases_lost"] += 1
        return lambda: self.notices.lost(it.lease, it.reason)

    def _bind_failed(self, it: Failed) -> Callable[[], None]:
        self._counters["earned_copies_failed"] += 1
        image = self._images.get(it.key)
        name = it.key[:16] if image is None else image.name
        told = "%s cannot be brought to %s behind its readers, who go on: %s; tried again after %.0f s at the earliest"
        return lambda: log.warning(told, name, it.place, it.error, it.again_in_s)

    def _bind_free(self, it: Free) -> Callable[[], None]:
        self._counters[f"evictions.{it.place}" if it.evicted else f"frees.{it.place}"] += 1
        return lambda: self._runner.free(ReplicaId(it.key, it.place, it.generation))


def _keys_of(ask: PendingRequest) -> tuple[str, str | None]:
    return ("", None) if ask.resolved is None else (ask.resolved.key, ask.resolved.in_place)
