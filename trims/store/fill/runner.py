"""Carrying out what takes time: measuring, filling, verifying, freeing.

Workers report every outcome as an event, never by raising. Extents and planned conversions live here, by replica. Not
covered: which request asked, and what to do about an outcome (`store`).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.background.rate_limit import Behind, RateLimiter
from trims.core.errors import (
    CapacityError,
    ImageError,
    InternalError,
    LostPeerError,
    NoSpaceError,
    TrimsError,
    is_system_error,
)
from trims.core.place import DISK, FILE
from trims.core.policy import capacity_errors
from trims.core.residency.events import Event, Filled, FillFailed, Freed, Measured, MeasureFailed, ReplicaBroken
from trims.formats.conversion.conversion import start_conversion
from trims.image.descriptors import explain_descriptors
from trims.store.fill.copying import Copier, RealHostBytes
from trims.store.fill.plans import SHUTTING_DOWN, Plans
from trims.store.work import BEHIND, LAST, PoolsByMount, Slots, thread_pool
from trims.tiers.base import DeviceTier, InPlaceTier
from trims.tiers.reading import read_ahead
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.background.task import Order
    from trims.core.place import Place
    from trims.core.replica import ReplicaId
    from trims.formats.base import Limits
    from trims.formats.conversion.conversion import Conversion
    from trims.store.fill.copying import HostBytes
    from trims.store.resolve.resolver import Resolved
    from trims.store.work import Pool, Pools
    from trims.tiers.base import Draft, Extent, Tier
    from trims.trace.context import SpanContext

log = logging.getLogger(__name__)
#: Artifacts of one mount point whose headers are read at once, by workers of their own, and by those that looked into
#: the files: each takes milliseconds of the interpreter lock, unless its file system hangs.
_PLANNERS = 2
_PLANNING_READERS = 2
#: Seconds after which files in place are read ahead; what a session reads at once comes by its own page faults.
_READ_AHEAD_AFTER_S = 0.01
#: Tries of a failed free, and the seconds between two. After the last the memory counts as freed, and the log says what
#: was left where.
FREE_TRIES = 4
FREE_PAUSE_S = 1.0
#: Seconds that the end of a daemon waits for fills to stop; one may hang in a dead file system.
END_S = 60.0
#: Seconds that the end of a daemon waits for workers that only look at files and read their headers.
_READERS_END_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a fill, in bytes; `total_bytes` is 0 while it is being measured."""

    done_bytes: int
    total_bytes: int


def converter_of(limits: Limits) -> Callable[[Resolved], Conversion]:
    """Return a function that begins conversions with these limits."""

    def convert(resolved: Resolved) -> Conversion:
        origin = resolved.manifest.origin
        return start_conversion(
            resolved.artifact,
            python=resolved.python,
            limits=limits,
            extra_paths=[Path(origin)] if origin else [],
        )

    return convert


class Runner:
    """Workers over tiers.

    Args:
        tiers: By place.
        convert: Begins conversions.
        report: Called with the event each job ends in, from a worker.
        workers: Copies that run at once.
        converters: Conversions in children that are planned or written at once; each may be a process with a framework
            in it. As many more may wait for room. What needs no child takes no converter.
        pools: Makes the workers.
        host: Bytes of the host.
        clock: Monotonic seconds.
        max_images: Images that may be open at once: each takes a descriptor.
        pace: Of fills that no request waits for; by default without a limit.
        readers: Workers that have just looked into files: one goes on to a header by itself, with no other thread to
            wake. By default headers wait for workers of their own.
        trace_of: Returns the span of a request that waits for the image of a key, if there is one that is recorded.

    Attributes:
        sealed: The memory of every sealed replica. Only the runner writes here; one look needs no lock.
    """

    def __init__(
        self,
        tiers: Mapping[Place, Tier],
        convert: Callable[[Resolved], Conversion],
        report: Callable[[Event], None],
        *,
        workers: int = 4,
        converters: int = 2,
        pools: Pools = thread_pool,
        host: HostBytes | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_images: int = sys.maxsize,
        pace: RateLimiter | None = None,
        readers: PoolsByMount | None = None,
        trace_of: Callable[[str], SpanContext | None] = lambda key: None,  # noqa: ARG005
    ) -> None:
        self._trace_of = trace_of
        self._max_images = max_images
        self._pace = pace or RateLimiter()
        self._tiers = tiers
        files = tiers.get(FILE)
        #: Cached check: asking an object for all that a protocol has takes longer than opening a file.
        self._files = files if isinstance(files, InPlaceTier) else None
        self._report = report
        self._clock = clock
        self._host = host if host is not None else RealHostBytes()
        self._plans = Plans(convert, converters)
        self._stopping = threading.Event()
        self._copier = Copier(self._host, self._stopping)
        self._converters = pools("convert", converters, niceness=BEHIND)
        self._new_pool = pools
        self._planners = PoolsByMount(pools, "plan", _PLANNERS)
        self._readers = readers or self._planners
        self._planning = Slots(_PLANNING_READERS)
        self._copiers = pools("copy", workers, niceness=BEHIND)
        #: Workers for fills that no request waits for: by mount point of the artifact, or "" for copies.
        self._behind_fills: dict[str, Pool] = {}
        self._freers = pools("free", 2, niceness=BEHIND)
        self._verifiers = pools("verify", 1, niceness=LAST)
        #: A device, or a tier of a plug-in, that does not answer holds up no other place: (copies, frees) of each.
        self._apart: dict[Place, tuple[Pool, Pool]] = {
            place: (pools(f"copy-{place}", workers), pools(f"free-{place}", 1))
            for place, tier in tiers.items()
            if isinstance(tier, DeviceTier) or getattr(tier, "apart", False)
        }
        self._converters_apart = {
            place: pools(f"convert-{place}", converters, niceness=BEHIND)
            for place in self._apart
            if not isinstance(tiers[place], DeviceTier)
        }
        self._lock = threading.Lock()
        self.sealed: dict[ReplicaId, Extent] = {}
        #: Descriptors that all sealed replicas take together.
        self._descriptors = 0
        #: Replicas whose measurement or fill no request waits for.
        self._unawaited: set[ReplicaId] = set()
        #: Fills and measurements of `_unawaited` that have not begun, and how ordinary workers begin them.
        self._in_line: dict[ReplicaId, Callable[[], None]] = {}
        #: Tenant for which a replica is measured or filled, until that ends; none where the daemon's own user asked.
        self._tenants: dict[ReplicaId, str] = {}
        self._progress: dict[tuple[str, Place], Progress] = {}
        #: Replicas whose memory could not be given back: (when to try again, how often it was tried, replica).
        self._unfreed: list[tuple[float, int, ReplicaId]] = []
        #: Replicas whose memory is being given back, and fills that wait for a descriptor of one.
        self._freeing: set[ReplicaId] = set()
        self._parked: list[Callable[[], None]] = []
        self._unverified: dict[ReplicaId, int] = {}
        #: Replicas to be verified before they are lent, in order.
        self._to_verify: OrderedDict[ReplicaId, tuple[Callable[[], Event], Callable[[TrimsError], Event]]]
        self._to_verify = OrderedDict()

    # -- extents ---------------------------------------------------------------------------------------------------

    def extents(self) -> dict[ReplicaId, Extent]:
        """Return a copy of `sealed`, of one moment."""
        with self._lock:
            return dict(self.sealed)

    def was_touched(self, extent: Extent) -> bool:
        """Return whether a file of the disk tier is not as it was sealed.

        Looks only at an open descriptor: never blocks.
        """
        if extent.place is not DISK or extent.identity is None:
            return False
        try:
            return self._host.identity(extent.fd) != extent.identity
        except OSError:
            return True

    def adopt(self, replica: ReplicaId, extent: Extent) -> None:
        """Take over a replica that a tier's scan has found and whose bytes may be lent."""
        with self._lock:
            before = self.sealed.get(replica)
            self.sealed[replica] = extent
            self._descriptors += _descriptors_of(extent) - _descriptors_of(before)

    def progress(self, key: str, place: Place) -> Progress | None:
        """Return how far the fill is; None if none is running."""
        return self._progress.get((key, place))

    @property
    def unverified_bytes(self) -> int:
        """Return the bytes that an earlier daemon left and that are still to be read and hashed."""
        with self._lock:
            return sum(self._unverified.values())

    # -- jobs ------------------------------------------------------------------------------------------------------

    def measure(self, replica: ReplicaId, measurement: int, resolved: Resolved, tenant: str | None = None) -> None:
        """Plan the conversion of the artifact; ends in Measured or MeasureFailed. Tenants take turns."""
        self._note_tenant(replica, tenant)
        plan, before = self._plans.begin(replica, resolved, gives_way=replica in self._unawaited)
        if before is not None:
            self._freers.submit(lambda: self._plans.drop(replica, before))

        def failed(error: TrimsError) -> Event:
            self._plans.drop(replica, plan)
            return MeasureFailed(at_s=self._clock(), **_about(replica), measurement=measurement, error=error)

        def work() -> Event:
            with span("plan", parent=self._trace_of(replica.key), model=resolved.name) as planning:
                nbytes = self._plans.measure(replica, plan)
                planning.set(image_bytes=nbytes)
            descriptors = self._plans.descriptors_of(replica)
            if descriptors > self._max_images:
                raise capacity_errors.too_many_files(resolved.name, descriptors, self._max_images)
            return Measured(
                at_s=self._clock(),
                **_about(replica),
                measurement=measurement,
                nbytes=nbytes,
                descriptors=descriptors,
            )

        def here_or_there() -> Event | None:
            with self._planning.one_of(resolved.mount) as free:
                if free:
                    return work()
            self._submit(self._planners.of(resolved.mount), replica, work, failed)
            return None

        if resolved.converted and replica.place is not FILE:
            self._submit_conversion(resolved.mount, replica, work, failed)
        elif self._readers is self._planners:
            self._submit(self._planners.of(resolved.mount), replica, work, failed)
        else:
            self._submit(self._readers.of(resolved.mount), replica, here_or_there, failed)

    def _submit_conversion(
        self, where: str, replica: ReplicaId, work: Callable[[], Event], failed: Callable[[TrimsError], Event]
    ) -> None:
        """Have a converter process plan an image; one that no request waits for takes no converter from the others."""
        begin = partial(self._submit, self._converters, replica, work, failed)
        with self._lock:  # `raise_priority` comes before this, or finds it in line
            behind = replica in self._unawaited
            if behind:
                self._in_line[replica] = begin
                pool = self._behind_pool(where)

        def in_turn() -> Event | None:
            with self._lock:
                if self._in_line.get(replica) is not begin:
                    return None  # ordinary workers have begun it, or another measurement came after it
                del self._in_line[replica]
            return work()

        if behind:
            self._submit(pool, replica, in_turn, failed)
        else:
            begin()

    def _note_tenant(self, replica: ReplicaId, tenant: str | None) -> None:
        if tenant is not None:
            self._tenants[replica] = tenant

    def abandon(self, replica: ReplicaId) -> None:
        """Stop planning and drop the plan: the last request for the replica is gone. Never blocks."""
        if replica in self._plans:
            self._plans.stop(replica)
            self._freers.submit(lambda: self._plans.drop(replica))

    def take_time(self, replica: ReplicaId) -> None:
        """Note that no request waits for the next fill of a replica, until its end or `raise_priority`."""
        with self._lock:
            self._unawaited.add(replica)

    def fill(self, replica: ReplicaId, nbytes: int, source: ReplicaId | None, tenant: str | None = None) -> None:
        """Fill from a sealed replica, or from the planned conversion; ends in Filled or FillFailed.

        A source that turns out broken is reported with ReplicaBroken first. Tenants take turns.
        """
        self._note_tenant(replica, tenant)
        device = next((it.place for it in (replica, source) if it and it.place in self._apart), None)
        if source is None:
            pool = self._pool_of(replica)
        else:
            self.abandon(replica)  # while it was measured, the image came to lie somewhere
            pool = self._copiers if device is None else self._apart[device][0]
        where = "" if source is not None else self._plans.mount_of(replica)
        with self._lock:  # `raise_priority` comes before this, or finds the fill in line
            in_line = replica in self._unawaited and device is None
            if in_line:
                self._in_line[replica] = partial(self._fill_once_there_is_a_descriptor, pool, replica, nbytes, source)
                pool = self._behind_pool(where)
        self._fill_once_there_is_a_descriptor(pool, replica, nbytes, source, in_line=in_line)

    def _behind_pool(self, where: str) -> Pool:
        """Return the worker for fills that no request waits for. Called under the lock."""
        pool = self._behind_fills.get(where)
        if pool is None:
            pool = self._behind_fills[where] = self._new_pool("behind", 1, niceness=BEHIND)
        return pool

    def _pool_of(self, replica: ReplicaId) -> Pool:
        """Return the workers for a fill from the artifact."""
        if replica.place is FILE:
            return self._readers.of(self._plans.mount_of(replica))
        if self._plans.needs_child(replica):
            return self._converters_apart.get(replica.place, self._converters)
        return self._apart[replica.place][0] if replica.place in self._apart else self._copiers

    def verify(self, replica: ReplicaId, extent: Extent) -> None:
        """Read and hash what an earlier daemon left, before it is lent; ends in Filled or FillFailed.

        Only what is proven wrong is removed: bytes that cannot be read just now stay for the next daemon.
        """

        def failed(error: TrimsError) -> Event:
            proven = isinstance(error, ImageError)
            log.warning("%s is %s: %s", extent.label, "removed" if proven else "left alone", error)
            if proven:
                self._remove(replica, extent)
            return self._failure(replica)(error)

        def work() -> Event:
            began = self._clock()
            try:
                self._verify(replica, extent)
                self.adopt(replica, extent)  # first: at no moment is it neither lent nor still to be verified
            finally:
                self._end_verification(replica)
            return Filled(at_s=self._clock(), **_about(replica), cost_s=self._clock() - began)

        with self._lock:
            self._unverified[replica] = extent.nbytes
            self._to_verify[replica] = (work, failed)
        self._verifiers.submit(self._verify_first)

    def raise_priority(self, replica: ReplicaId) -> None:
        """Fill a replica as fast as can be: a request waits for it, or for room that its fill keeps.

        If it is still to be verified, that is done at once. Idempotent. Never blocks.
        """
        with self._lock:
            self._unawaited.discard(replica)
            begin = self._in_line.pop(replica, None)
            waiting = self._to_verify.pop(replica, None)
        self._plans.raise_priority(replica)
        if begin is not None:
            begin()
        if waiting is not None:
            self._submit(self._copiers, replica, *waiting)

    def verify_next(self, replica: ReplicaId) -> bool:
        """Verify a replica before others that no request waits for. Return False if it needs no verification any more.

        Idempotent; never blocks.
        """
        with self._lock:
            if replica in self._to_verify:
                self._to_verify.move_to_end(replica, last=False)
            return replica in self._unverified and replica not in self.sealed

    def _verify_first(self) -> None:
        with self._lock:
            if not self._to_verify:
                return  # a request has raised its priority
            replica, (work, failed) = self._to_verify.popitem(last=False)
        self._guarded(replica, work, failed)

    def _remove(self, replica: ReplicaId, extent: Extent) -> None:
        try:
            self._tiers[replica.place].free(extent)
        except Exception:
            log.exception("%s cannot be removed, and is left where it is", extent.label)

    def verify_behind(self, replica: ReplicaId, extent: Extent) -> None:
        """Read and hash what is lent already; ends in ReplicaBroken if the bytes are wrong, else in nothing."""

        def work() -> None:
            try:
                if self.sealed.get(replica) is extent:
                    self._verify(replica, extent)
            except ImageError as error:
                self._report(ReplicaBroken(at_s=self._clock(), **_about(replica), reason=str(error)))
            except (OSError, TrimsError) as error:
                log.warning("%s could not be read again: %s", extent.label, error)
            finally:
                self._end_verification(replica)

        with self._lock:
            self._unverified[replica] = extent.nbytes
        self._verifiers.submit(work)

    def _verify(self, replica: ReplicaId, extent: Extent) -> None:
        self._tiers[replica.place].verify(extent, cancelled=self._stopping)

    def _end_verification(self, replica: ReplicaId) -> None:
        with self._lock:
            self._unverified.pop(replica, None)

    def free(self, replica: ReplicaId, tries: int = 0) -> None:
        """Give the memory back; ends in Freed."""
        with self._lock:
            self._freeing.add(replica)
        freers = self._apart[replica.place][1] if replica.place in self._apart else self._freers
        freers.submit(lambda: self._free(replica, tries))

    def try_again(self, now_s: float) -> None:
        """Try to free once more what could not be freed, if its pause is over."""
        with self._lock:
            due = [entry for entry in self._unfreed if entry[0] <= now_s]
            self._unfreed = [entry for entry in self._unfreed if entry[0] > now_s]
        for _, tries, replica in due:
            self.free(replica, tries)

    def next_due_s(self) -> float | None:
        """Return when a failed free is tried again; None if none is to be."""
        with self._lock:
            return min((entry[0] for entry in self._unfreed), default=None)

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stop what is being planned, filled and verified, and wait for its end. From now on only freeing is done."""
        self._stopping.set()
        self._plans.end()
        self._verifiers.stop()
        copiers = [copier for copier, _ in self._apart.values()] + list(self._converters_apart.values())
        if not all([self._readers.stop(timeout_s=_READERS_END_S), self._planners.stop(timeout_s=_READERS_END_S)]):
            log.warning("a look at a file hangs: it is left behind")
        for pool in (*self._behind_fills.values(), self._converters, self._copiers, *copiers):
            if not pool.stop(timeout_s=END_S):
                log.error("a fill hangs in a read or a write: it is left behind")
        self._host.stop()

    def stop(self) -> None:
        """Finish, and close the tiers. Sealed replicas stay."""
        self.finish()
        for pool in (self._freers, *(freer for _, freer in self._apart.values())):
            if not pool.stop(timeout_s=END_S):
                log.error("memory that hangs while it is given back is left behind")
        self._look_again()  # no pool takes work any more: they are refused
        self._plans.close()
        for tier in self._tiers.values():
            tier.close()

    # -- work ------------------------------------------------------------------------------------------------------

    def _submit(
        self, pool: Pool, replica: ReplicaId, work: Callable[[], Event | None], failed: Callable[[TrimsError], Event]
    ) -> None:
        if not pool.submit(lambda: self._guarded(replica, work, failed), self._tenants.get(replica)):
            self._report(failed(LostPeerError(SHUTTING_DOWN)))

    def _guarded(
        self, replica: ReplicaId, work: Callable[[], Event | None], failed: Callable[[TrimsError], Event]
    ) -> None:
        """Do the work and report the event it ends in; None if it was put off, or left to other workers."""
        try:
            if self._stopping.is_set():
                raise LostPeerError(SHUTTING_DOWN)
            event = work()
        except BaseException as error:  # noqa: BLE001 - every failure is an outcome, also one that is no Exception
            event = failed(_as_answer(replica, error))
        if event is not None:
            self._unawaited.discard(replica)
            self._tenants.pop(replica, None)
            self._progress.pop((replica.key, replica.place), None)
            self._report(event)

    def _failure(self, replica: ReplicaId) -> Callable[[TrimsError], Event]:
        def failed(error: TrimsError) -> Event:
            self._plans.drop(replica)
            return FillFailed(at_s=self._clock(), **_about(replica), error=error)

        return failed

    def _fill_once_there_is_a_descriptor(
        self, pool: Pool, replica: ReplicaId, nbytes: int, source: ReplicaId | None, *, in_line: bool = False
    ) -> None:
        """Fill now, or as soon as an image that is being freed has given its descriptor back.

        Args:
            pool: Workers.
            replica: What to fill.
            nbytes: Its length.
            source: What to fill it from; None for its artifact.
            in_line: Do nothing if ordinary workers have begun it meanwhile.
        """

        def work() -> Event | None:
            with self._lock:
                if self._lacks_descriptors(replica) and self._freeing:
                    self._parked.append(submit)
                    return None
                if in_line and self._in_line.pop(replica, None) is None:
                    return None
            return self._fill(replica, nbytes, source)

        def submit() -> None:
            self._submit(pool, replica, work, self._failure(replica))

        submit()

    def _freed_one(self, replica: ReplicaId) -> None:
        """Let fills that waited for a descriptor look again: a free is over, whether done or given up."""
        with self._lock:
            self._descriptors -= _descriptors_of(self.sealed.pop(replica, None))
            self._freeing.discard(replica)
        self._look_again()

    def _look_again(self) -> None:
        with self._lock:
            parked, self._parked = self._parked, []
        for submit in parked:
            submit()

    def _serve_in_place(self, replica: ReplicaId) -> Event:
        """Open the artifact's own files."""
        started = self._clock()
        tier = self._files
        assert tier is not None, "there is one tier of files"
        with span("open.file", parent=self._trace_of(replica.key), key=replica.key[:16]):
            extent = tier.serve(replica.key, replica.generation, self._plans.take_in_place(replica))
        self.adopt(replica, extent)
        filled_at_s = self._clock()
        self._verifiers.submit(lambda: self._read_ahead(extent, filled_at_s))
        return Filled(at_s=filled_at_s, **_about(replica), cost_s=filled_at_s - started)

    def _read_ahead(self, extent: Extent, filled_at_s: float) -> None:
        """Have the kernel read an artifact's files, once the session has its answer: both use the interpreter."""
        self._stopping.wait(max(0.0, filled_at_s + _READ_AHEAD_AFTER_S - self._clock()))
        read_ahead(extent, self._stopping)

    def _lacks_descriptors(self, replica: ReplicaId) -> bool:
        return self._descriptors + self._plans.descriptors_of(replica) > self._max_images

    def _fill(self, replica: ReplicaId, nbytes: int, source: ReplicaId | None) -> Event:
        if self._lacks_descriptors(replica):
            needed = self._plans.descriptors_of(replica)
            raise capacity_errors.no_descriptors(needed, self._descriptors, self._max_images)
        if replica.place is FILE:
            return self._serve_in_place(replica)
        started = self._clock()
        tier = self._tiers[replica.place]
        name = f"fill.{replica.place}" if source is None else f"copy.{source.place}-{replica.place}"
        with span(name, parent=self._trace_of(replica.key), key=replica.key[:16], image_bytes=nbytes):
            draft, digest = self._make(tier, replica, nbytes, source)
            try:
                extent = tier.seal(draft, replica.key, digest)
            except TrimsError:
                raise
            except OSError as error:
                raise tier.explain(error, nbytes) from error
            self._identify(tier, extent)
        self.adopt(replica, extent)
        return Filled(at_s=self._clock(), **_about(replica), cost_s=self._clock() - started)

    def _make(self, tier: Tier, replica: ReplicaId, nbytes: int, source: ReplicaId | None) -> tuple[Draft, str]:
        """Return a draft with the image in it, and the image's digest.

        Rate-limited while no request waits for the image. Once one does, the draft is made again, without a limit.
        """
        behind = self._behind(replica)
        carried = behind is not None and (source is not None or self._plans.is_carriable(replica))
        while True:
            draft = tier.create(replica.key, replica.generation, nbytes, allocate=source is None and not carried)
            try:
                if source is not None:
                    digest = self._copy(replica, draft, source, behind)
                elif behind is not None and carried:
                    digest = self._carry(replica, draft, behind)
                else:
                    digest = self._convert(replica, draft, behind)
            except BaseException as error:
                tier.abort(draft)
                if is_system_error(error):
                    raise tier.explain(error, nbytes) from error
                if isinstance(error, NoSpaceError):  # of a device that is copied from; this place has given its room
                    raise CapacityError(str(error)) from error
                raise
            if digest is not None:
                return draft, digest
            tier.abort(draft)
            behind, carried = None, False

    def _identify(self, tier: Tier, extent: Extent) -> None:
        try:
            extent.identity = self._host.identity(extent.fd)
        except OSError:
            tier.free(extent)
            raise

    def _carry(self, replica: ReplicaId, draft: Draft, behind: Behind) -> str | None:
        """Have a copier put the image together. Return its digest, or None when a request starts waiting for it."""

        def by(order: Order, on_progress: Callable[[int], None]) -> dict[str, str] | None:
            def tell(done_bytes: int) -> None:
                self._tell(replica, done_bytes, draft.nbytes)
                on_progress(done_bytes)

            return behind.carry(order, tell)

        digest = self._plans.carry(replica, by, draft.fd, large_pages=draft.pages is not None)
        if digest is not None:
            self._host.check(draft.fd, draft.nbytes)
        return digest

    def _convert(self, replica: ReplicaId, draft: Draft, behind: Behind | None) -> str:
        def tell(done_bytes: int) -> None:
            self._tell(replica, done_bytes, draft.nbytes)
            if behind is not None:
                behind.done(done_bytes)

        self._plans.write(replica, draft.fd, draft.nbytes, tell)
        self._host.check(draft.fd, draft.nbytes)  # a converter child is not trusted
        return self._host.digest(draft.fd, draft.nbytes, behind)

    def _behind(self, replica: ReplicaId) -> Behind | None:
        """Return the rate limit of a fill that no request waits for; None if one does."""
        if replica not in self._unawaited:
            return None
        return Behind(self._pace, lambda: replica not in self._unawaited or self._stopping.is_set())

    def _copy(self, replica: ReplicaId, draft: Draft, source: ReplicaId, behind: Behind | None) -> str | None:
        extent = self.sealed.get(source)
        if extent is None:
            raise InternalError(f"{source.key[:16]} at {source.place} is borrowed but has no memory")
        target, origin = self._tiers[replica.place], self._tiers[source.place]
        try:
            return self._copier.copy(
                target,
                draft,
                origin,
                extent,
                lambda done: self._tell(replica, done, draft.nbytes),
                behind=behind,
            )
        except ImageError as error:
            self._report(ReplicaBroken(at_s=self._clock(), **_about(source), reason=str(error)))
            raise

    def _tell(self, replica: ReplicaId, done_bytes: int, total_bytes: int) -> None:
        self._progress[replica.key, replica.place] = Progress(done_bytes, total_bytes)

    def _free(self, replica: ReplicaId, tries: int) -> None:
        with self._lock:
            extent = self.sealed.get(replica)
        try:
            if extent is not None:
                with span(f"free.{replica.place}", key=replica.key[:16], image_bytes=extent.nbytes):
                    self._tiers[replica.place].free(extent)
        except BaseException as error:
            log.exception("%s at %s cannot be given back", replica.key[:16], replica.place)
            if tries < FREE_TRIES and not self._stopping.is_set():
                with self._lock:
                    self._unfreed.append((self._clock() + FREE_PAUSE_S, tries + 1, replica))
                return
            label = "" if extent is None else extent.label
            log.error("%s is left where it is and counts no more: %s", label, error)  # noqa: TRY400 - logged above
        self._freed_one(replica)
        self._report(Freed(at_s=self._clock(), **_about(replica)))


def _descriptors_of(extent: Extent | None) -> int:
    return 0 if extent is None else 1 + len(extent.pages)


def _about(replica: ReplicaId) -> dict[str, Any]:
    return {"key": replica.key, "place": replica.place, "generation": replica.generation}


def _as_answer(replica: ReplicaId, error: BaseException) -> TrimsError:
    if isinstance(error, OSError):
        error = explain_descriptors(error)
    if isinstance(error, TrimsError):
        return error
    if isinstance(error, OSError):
        return InternalError(f"{replica.key[:16]} at {replica.place}: {error}")
    log.error("a worker failed on %s at %s", replica.key[:16], replica.place, exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")
