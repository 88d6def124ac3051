"""The shell round residency: events go in one after the other, what they lead to is carried out, askers are answered.

One lock guards the books. Under it an event is decided and whatever must be looked up before the books change again is
bound; what takes time, answers included, is done after it is released. Not covered: names and orders (`store`), bytes
(`runner`), decisions (`trims.core.residency`).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING

from trims.core.errors import (
    DigestMismatchError,
    ImageError,
    InternalError,
    LostPeerError,
    ModelNotFoundError,
)
from trims.core.events import (
    Abandon,
    Changed,
    Event,
    Fill,
    Filled,
    FillFailed,
    Free,
    Grant,
    Instruction,
    Lost,
    Measure,
    Ready,
    Refuse,
    ReplicaBroken,
    Requested,
    SessionEnded,
)
from trims.core.lease import Waiter
from trims.store.asks import Ask, Granted, Loaded
from trims.store.runner import Job

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from trims.core.lease import Lease
    from trims.core.place import Place
    from trims.core.replica import Replica
    from trims.core.residency import Residency
    from trims.store.resolve import Resolved
    from trims.store.runner import Runner
    from trims.store.watchers import Watchers
    from trims.tiers.base import Extent

log = logging.getLogger(__name__)
_REMEMBERED_IMAGES = 4096


class Shell:
    """Residency, and who asked it what.

    Args:
        residency: The books.
        runner: Does what takes time; its reports must be fed.
        watchers: Told of every change of state.
        counters: What is counted for operators.
        again: Takes an ask that met a broken replica; called without the lock.
        filled: Takes every fill that succeeded, after whoever waited for it was answered; called without the lock.
        verify: Check every invariant after every event.

    Attributes:
        lock: Guards the books; hold it to read several of them at one moment.
        lost: Takes every lease that ended because its memory is gone, and why; called without the lock.
    """

    def __init__(
        self,
        residency: Residency,
        runner: Runner,
        watchers: Watchers,
        counters: Counter[str],
        *,
        again: Callable[[Ask, Resolved], None],
        filled: Callable[[Filled], None],
        verify: bool,
    ) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._residency = residency
        self._runner = runner
        self._counters = counters
        self._again = again
        self._filled = filled
        self._verify = verify
        self.lost: Callable[[Lease, str], None] = _tell_nobody
        self._session_numbers = itertools.count(1)
        self._sessions: set[int] = set()
        self._asks: dict[int, Ask] = {}
        self._images: dict[str, Resolved] = {}
        self._most_images = _REMEMBERED_IMAGES
        self._bindings: dict[type[Instruction], Callable[..., Callable[[], None] | None]] = {
            Grant: self._bind_grant,
            Ready: self._bind_ready,
            Refuse: self._bind_refuse,
            Measure: self._bind_measure,
            Fill: self._bind_fill,
            Abandon: lambda it: lambda: runner.abandon(Job(it.key, it.place, it.generation)),
            Free: self._bind_free,
            Lost: self._bind_lost,
            Changed: watchers.tell,
        }

    # -- events in -------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Let an event happen, then do what follows from it.

        Raises:
            InUseError: An eviction without `drain` met a lease, a copy or a fill; nothing changed.
        """
        if isinstance(event, ReplicaBroken):
            self._counters["broken"] += 1
            log.error("replica %s at %s is broken: %s", event.key[:16], event.place, event.reason)
        with self.lock:
            work = self._handle(event)
        for do in work:
            do()
        if isinstance(event, Filled):
            self._filled(event)

    def ask(
        self, ask: Ask, key: str, place: Place, keep_alive_s: float | None, working_bytes: int | None = None
    ) -> bool:
        """Let somebody ask for an image at a place; he is answered now or later. True if he waits."""
        waiter = Waiter(ask.ticket, ask.session, ask.wants_lease, ask.deadline_at_s)
        event = Requested(
            at_s=time.monotonic(),
            key=key,
            place=place,
            waiter=waiter,
            keep_alive_s=keep_alive_s,
            working_bytes=working_bytes,
        )
        waits = False
        with self.lock:
            gone = ask.session is not None and ask.session not in self._sessions
            if not gone:
                self._asks[ask.ticket] = ask
                work = self._handle(event)
                waits = ask.ticket in self._asks
        if gone:
            ask.answer(LostPeerError("the session ended before its request was looked into"))
            return False
        for do in work:
            do()
        return waits

    def begin_session(self) -> int:
        """A client connected; returns its number."""
        with self.lock:
            number = next(self._session_numbers)
            self._sessions.add(number)
            return number

    def end_session(self, session: int) -> None:
        """The client went away: its leases close, its asks are dropped unanswered. Idempotent."""
        with self.lock:
            self._sessions.discard(session)
        self.feed(SessionEnded(at_s=time.monotonic(), session=session))
        with self.lock:
            for ticket in [ask.ticket for ask in self._asks.values() if ask.session == session]:
                del self._asks[ticket]

    def take_asks(self) -> list[Ask]:
        """Everybody who was not answered yet; whoever takes them answers them."""
        with self.lock:
            left = list(self._asks.values())
            self._asks.clear()
        return left

    # -- questions -------------------------------------------------------------------------------------------------

    def places_of(self, key: str) -> list[Replica]:
        """All replicas of an image now, fastest place first."""
        with self.lock:
            return self._residency.places_of(key)

    def place_of(self, session: int, lease: int) -> Place | None:
        """Where a session's lease is for, or None if it has no such lease."""
        with self.lock:
            found = self._residency.leases.by_number.get(lease)
            return found.place if found is not None and found.session == session else None

    def extent_of(self, session: int, lease: int) -> Extent | None:
        """The memory a session's lease is for, or None if it has no such lease."""
        with self.lock:
            found = self._residency.leases.by_number.get(lease)
            if found is None or found.session != session:
                return None
            return self._runner.extent(Job(found.key, found.place, found.generation))

    def is_resident(self, key: str, place: Place) -> bool:
        """True if the image is sealed there now."""
        with self.lock:
            replica = self._residency.find(key, place)
            return replica is not None and self._runner.extent(Job(key, place, replica.generation)) is not None

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds, looked at under the lock after each change; False if the time was too short."""
        with self._changed:
            return self._changed.wait_for(holds, timeout=timeout_s)

    def remember(self, resolved: Resolved) -> None:
        """Keep what a fill may need; of images that are neither resident nor asked for, only the latest."""
        with self.lock:
            self._images[resolved.key] = resolved
            if len(self._images) > self._most_images:
                wanted = {key for key, _ in self._residency.replicas} | {resolved.key}
                wanted.update(ask.resolved.key for ask in self._asks.values() if ask.resolved)
                self._images = {key: image for key, image in self._images.items() if key in wanted}
                # Twice what is wanted, so that looking for what is not costs nothing by the request.
                self._most_images = max(_REMEMBERED_IMAGES, 2 * len(self._images))

    def image(self, key: str) -> Resolved | None:
        """What is remembered of an image, or None."""
        return self._images.get(key)

    # -- instructions out ------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> list[Callable[[], None]]:
        """Under the lock: decide, and bind what must be looked up before the books change again."""
        instructions = self._residency.handle(event)
        if self._verify:
            self._residency.validate()
        bound = [self._bindings[type(instruction)](instruction) for instruction in instructions]
        if instructions:
            self._changed.notify_all()
        return [work for work in bound if work is not None]

    def _bind_grant(self, it: Grant) -> Callable[[], None]:
        ask = self._asks.pop(it.ticket)
        lease = it.lease
        extent = self._runner.extent(Job(lease.key, lease.place, lease.generation))
        self._counters["warm" if it.warm else "cold"] += 1
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
            return lambda: self._again(ask, resolved)
        self._counters[f"refused.{it.error.code}"] += 1
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
            return lambda: self.feed(failed)
        return lambda: self._runner.measure(job, resolved)

    def _bind_fill(self, it: Fill) -> Callable[[], None]:
        job = Job(it.key, it.place, it.generation)
        self._counters[f"fills.{it.place}"] += 1
        source = None
        if it.source is not None:
            replica = self._residency.find(it.key, it.source)
            assert replica is not None, "residency has borrowed it"
            source = Job(it.key, it.source, replica.generation)
        return lambda: self._runner.fill(job, it.nbytes, source)

    def _bind_lost(self, it: Lost) -> Callable[[], None]:
        self._counters["leases_lost"] += 1
        return lambda: self.lost(it.lease, it.reason)

    def _bind_free(self, it: Free) -> Callable[[], None]:
        self._counters[f"evictions.{it.place}" if it.evicted else f"frees.{it.place}"] += 1
        return lambda: self._runner.free(Job(it.key, it.place, it.generation))


def _tell_nobody(lease: Lease, reason: str) -> None:
    log.warning("session %d has lost its lease %d, and nobody tells it: %s", lease.session, lease.number, reason)
