"""Carrying out what takes time: measuring, filling, verifying, freeing.

Workers report every outcome as an event, never by raising. Extents and planned conversions live here, by replica. Not
covered: which request asked, and what to do about an outcome (`store`).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.background.rate_limit import RateLimiter
from trims.core.errors import (
    ArtifactChangedError,
    ArtifactNotFoundError,
    ImageError,
    InternalError,
    LostPeerError,
    TrimsError,
)
from trims.core.place import CLOUD, DISK, FILE
from trims.core.policy import capacity_errors
from trims.core.residency.events import Event, Filled, FillFailed, Freed, Measured, MeasureFailed, ReplicaBroken
from trims.formats.conversion.conversion import start_conversion
from trims.image.descriptors import explain_descriptors
from trims.store.fill.copying import RealHostBytes
from trims.store.fill.freeing import Freeing
from trims.store.fill.image_maker import BrokenSourceError, ImageMaker
from trims.store.fill.plans import SHUTTING_DOWN, Plans
from trims.store.fill.sealed_replicas import SealedReplicas
from trims.store.fill.verification_queue import VerificationQueue
from trims.store.fill.workers import Workers
from trims.store.work import Slots, thread_pool
from trims.tiers.base import RemoteTier
from trims.tiers.reading import read_ahead
from trims.trace.spans import Within, span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.core.place import Place
    from trims.core.replica import ReplicaId
    from trims.formats.base import Limits
    from trims.formats.conversion.conversion import Conversion
    from trims.store.fill.copying import HostBytes
    from trims.store.fill.image_maker import Progress
    from trims.store.resolve.resolved import Resolved
    from trims.store.work import Pool, Pools, PoolsByMount
    from trims.tiers.base import Extent, Tier
    from trims.trace.context import SpanContext

log = logging.getLogger(__name__)
#: Headers that those who looked into the files read at once: each takes milliseconds of the interpreter lock.
_PLANNING_READERS = 2
#: Seconds after which files in place are read ahead; what a session reads at once comes by its own page faults.
_READ_AHEAD_AFTER_S = 0.01


def converter_of(limits: Limits) -> Callable[[Resolved], Conversion]:
    """Return a function that begins conversions with these limits."""

    def convert(resolved: Resolved) -> Conversion:
        origin = resolved.manifest.origin
        if not resolved.artifact.files and resolved.cloud is None:
            raise ArtifactChangedError(f"{resolved.name}: its last image went, and its files have to be fetched again")
        if not resolved.artifact.files:
            raise ArtifactNotFoundError(
                f"{resolved.name}: the image at {resolved.manifest.artifact.uri} cannot be had, and there is no "
                "artifact to make another one of; push it again, or see whether it is there (`trims pull`)"
            )
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
        report: Called with the event each job ends in, from a worker.
        workers: Copies that run at once.
        converters: Conversions in children that are planned or written at once; each may be a process with a framework
            in it. As many more may wait for room. What needs no child takes no converter.
        max_images: Images that may be open at once: each takes a descriptor.
        pace: Rate limiter of fills that no request waits for; by default without a limit.
        readers: Workers that have just looked into files: one goes on to a header by itself, with no other thread to
            wake. By default headers wait for workers of their own.
        trace_of: Returns the span of a request that waits for the image of a key, if there is one that is recorded.

    Attributes:
        sealed: The memory of every sealed replica: `SealedReplicas.by_replica`.
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
        self._tiers = tiers
        self._report = report
        self._clock = clock
        self._host = host if host is not None else RealHostBytes()
        self._plans = Plans(convert, converters)
        self._stopping = threading.Event()
        self._workers = Workers(tiers, pools, workers, converters, readers)
        self._planning = Slots(_PLANNING_READERS)
        #: Replicas whose measurement or fill no request waits for.
        self._unawaited: set[ReplicaId] = set()
        self._maker = ImageMaker(
            tiers, self._plans, self._host, pace or RateLimiter(),
            is_awaited=lambda replica: replica not in self._unawaited, stopping=self._stopping,
        )  # fmt: skip
        self._lock = threading.Lock()
        #: Fills and measurements of `_unawaited` that have not begun, and how ordinary workers begin them.
        self._in_line: dict[ReplicaId, Callable[[], None]] = {}
        #: Tenant for which a replica is measured or filled, until that ends; none where the daemon's own user asked.
        self._tenants: dict[ReplicaId, str] = {}
        self._memory = SealedReplicas(max_images)
        self.sealed = self._memory.by_replica
        self._freeing = Freeing(tiers, self._memory, self._workers, clock=clock, stopping=self._stopping)
        self._to_verify = VerificationQueue()

    # -- extents ---------------------------------------------------------------------------------------------------

    def extents(self) -> dict[ReplicaId, Extent]:
        """Return a copy of `sealed`, of one moment."""
        return self._memory.extents()

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
        self._memory.add(replica, extent)

    def progress(self, key: str, place: Place) -> Progress | None:
        """Return how far the fill is; None if none is running."""
        return self._maker.progress(key, place)

    @property
    def unverified_bytes(self) -> int:
        """Return the bytes that an earlier daemon left and that are still to be read and hashed."""
        return self._to_verify.nbytes

    # -- jobs ------------------------------------------------------------------------------------------------------

    def measure(self, replica: ReplicaId, measurement: int, resolved: Resolved, tenant: str | None = None) -> None:
        """Plan the conversion of the artifact; ends in Measured or MeasureFailed. Tenants take turns."""
        self._note_tenant(replica, tenant)
        plan, before = self._plans.begin(replica, resolved, gives_way=replica in self._unawaited)
        if before is not None:
            self._workers.freers.submit(lambda: self._plans.drop(replica, before))

        def failed(error: TrimsError) -> Event:
            self._plans.drop(replica, plan)
            return MeasureFailed(at_s=self._clock(), **_about(replica), measurement=measurement, error=error)

        def work() -> Event:
            with span("plan", parent=self._trace_of(replica.key), model=resolved.name) as planning:
                nbytes = self._plans.measure(replica, plan)
                planning.set(image_bytes=nbytes)
            descriptors = self._plans.descriptors_of(replica)
            if descriptors > self._memory.most:
                raise capacity_errors.too_many_files(resolved.name, descriptors, self._memory.most)
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
            self._submit(self._workers.planners.of(resolved.mount), replica, work, failed)
            return None

        if resolved.converted and replica.place is not FILE:
            self._submit_conversion(resolved.mount, replica, work, failed)
        elif self._workers.readers is self._workers.planners:
            self._submit(self._workers.planners.of(resolved.mount), replica, work, failed)
        else:
            self._submit(self._workers.readers.of(resolved.mount), replica, here_or_there, failed)

    def _submit_conversion(
        self, where: str, replica: ReplicaId, work: Callable[[], Event], failed: Callable[[TrimsError], Event]
    ) -> None:
        """Have a converter process plan an image; one that no request waits for takes no converter from the others."""
        begin = partial(self._submit, self._workers.converters, replica, work, failed)
        with self._lock:  # `raise_priority` comes before this, or finds it in line
            behind = replica in self._unawaited
            if behind:
                self._in_line[replica] = begin
                pool = self._workers.behind(where)

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
            self._workers.freers.submit(lambda: self._plans.drop(replica))

    def take_time(self, replica: ReplicaId) -> None:
        """Note that no request waits for the next fill of a replica, until its end or `raise_priority`."""
        with self._lock:
            self._unawaited.add(replica)

    def fill(self, replica: ReplicaId, nbytes: int, source: ReplicaId | None, tenant: str | None = None) -> None:
        """Fill from a sealed replica, or from the planned conversion; ends in Filled or FillFailed.

        A source that turns out broken is reported with ReplicaBroken first. Tenants take turns.
        """
        self._note_tenant(replica, tenant)
        if source is None:
            pool = self._pool_of(replica)
        else:
            self.abandon(replica)  # while it was measured, the image came to lie somewhere
            pool = self._workers.copying(replica.place, source.place)
        where = "" if source is not None else self._plans.mount_of(replica)
        apart = any(self._workers.is_apart(it.place) for it in (replica, source) if it is not None)
        with self._lock:  # `raise_priority` comes before this, or finds the fill in line
            in_line = replica in self._unawaited and not apart
            if in_line:
                self._in_line[replica] = partial(self._fill_once_there_is_a_descriptor, pool, replica, nbytes, source)
                pool = self._workers.behind(where)
        self._fill_once_there_is_a_descriptor(pool, replica, nbytes, source, in_line=in_line)

    def _pool_of(self, replica: ReplicaId) -> Pool:
        """Return the workers for a fill from the artifact."""
        if replica.place is FILE:
            return self._workers.readers.of(self._plans.mount_of(replica))
        if self._plans.needs_child(replica):
            return self._workers.converting(replica.place)
        return self._workers.copying(replica.place)

    def verify(self, replica: ReplicaId, extent: Extent) -> None:
        """Read and hash what an earlier daemon left, before it is lent; ends in Filled or FillFailed.

        Only what is proven wrong is removed: bytes that cannot be read just now stay for the next daemon.
        """

        def failed(error: TrimsError) -> Event:
            proven = isinstance(error, ImageError)
            log.warning("%s is %s: %s", extent.label, "removed" if proven else "left alone", error)
            if proven:
                self._freeing.remove(replica, extent)
            return self._failure(replica)(error)

        def work() -> Event:
            began = self._clock()
            try:
                self._verify(replica, extent)
                self.adopt(replica, extent)  # first: at no moment is it neither lent nor still to be verified
            finally:
                self._to_verify.end(replica)
            return Filled(at_s=self._clock(), **_about(replica), cost_s=self._clock() - began)

        self._to_verify.add(replica, extent.nbytes, (work, failed))
        self._workers.verifiers.submit(self._verify_first)

    def raise_priority(self, replica: ReplicaId) -> None:
        """Fill a replica as fast as can be: a request waits for it, or for room that its fill keeps.

        If it is still to be verified, that is done at once. Idempotent. Never blocks.
        """
        with self._lock:
            self._unawaited.discard(replica)
            begin = self._in_line.pop(replica, None)
        self._plans.raise_priority(replica)
        if begin is not None:
            begin()
        if (waiting := self._to_verify.take(replica)) is not None:
            self._submit(self._workers.copiers, replica, *waiting)

    def verify_next(self, replica: ReplicaId) -> bool:
        """Verify a replica before others that no request waits for. Return False if it needs no verification any more.

        Idempotent; never blocks.
        """
        return self._to_verify.move_up(replica) and replica not in self.sealed

    def _verify_first(self) -> None:
        if (first := self._to_verify.pop()) is not None:  # else a request has raised its priority
            replica, (work, failed) = first
            self._guarded(replica, work, failed)

    def verify_behind(self, replica: ReplicaId, extent: Extent) -> None:
        """Read and hash what is lent already; ends in ReplicaBroken if the bytes are wrong, else in nothing."""

        def work() -> None:
            try:
                if self.sealed.get(replica) is extent:
                    self._verify(replica, extent)
            except ImageError as error:
                self._report_broken(replica, extent, str(error))
            except (OSError, TrimsError) as error:
                log.warning("%s could not be read again: %s", extent.label, error)
            finally:
                self._to_verify.end(replica)

        self._to_verify.add(replica, extent.nbytes)
        self._workers.verifiers.submit(work)

    def _report_broken(self, replica: ReplicaId, extent: Extent | None, reason: str) -> None:
        """Report wrong bytes. If they came from the cloud, the replica there has them, too, and is reported first."""
        cloud = self._tiers.get(CLOUD)
        if extent is not None and extent.fetched and isinstance(cloud, RemoteTier):
            cloud.doubt(replica.key)
            for each, origin in self.extents().items():
                if each.key == replica.key and each.place is CLOUD:
                    told = f"{origin.label} has other bytes than its description states: {reason}"
                    self._report(ReplicaBroken(at_s=self._clock(), **_about(each), reason=told))
        self._report(ReplicaBroken(at_s=self._clock(), **_about(replica), reason=reason))

    def _verify(self, replica: ReplicaId, extent: Extent) -> None:
        self._tiers[replica.place].verify(extent, cancelled=self._stopping)

    def free(self, replica: ReplicaId) -> None:
        """Give the memory back; ends in Freed."""
        self._freeing.begin(replica, lambda: self._report(Freed(at_s=self._clock(), **_about(replica))))

    def try_again(self, now_s: float) -> None:
        """Try to free once more what could not be freed, if its pause is over."""
        self._freeing.try_again(now_s)

    def next_due_s(self) -> float | None:
        """Return when a failed free is tried again; None if none is to be."""
        return self._freeing.next_due_s()

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stop what is being planned, filled and verified, and wait for its end. From now on only freeing is done."""
        self._stopping.set()
        self._plans.end()
        self._workers.finish()
        self._host.stop()

    def stop(self) -> None:
        """Finish, and close the tiers. Sealed replicas stay."""
        self.finish()
        self._workers.stop()
        self._memory.begin_parked()  # no pool takes work any more: they are refused
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
            self._maker.forget(replica)
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
            source: What to fill it from; None for its artifact.
            in_line: Do nothing if ordinary workers have begun it meanwhile.
        """

        def work() -> Event | None:
            if self._memory.parks(self._plans.descriptors_of(replica), submit):
                return None
            with self._lock:
                if in_line and self._in_line.pop(replica, None) is None:
                    return None
            return self._fill(replica, nbytes, source)

        def submit() -> None:
            self._submit(pool, replica, work, self._failure(replica))

        submit()

    def _serve_in_place(self, replica: ReplicaId) -> Event:
        started = self._clock()
        with Within(self._trace_of(replica.key)):
            extent = self._maker.serve_in_place(replica)
        self.adopt(replica, extent)
        filled_at_s = self._clock()
        self._workers.verifiers.submit(lambda: self._read_ahead(extent, filled_at_s))
        return Filled(at_s=filled_at_s, **_about(replica), cost_s=filled_at_s - started)

    def _read_ahead(self, extent: Extent, filled_at_s: float) -> None:
        """Have the kernel read an artifact's files, once the session has its answer: both use the interpreter."""
        self._stopping.wait(max(0.0, filled_at_s + _READ_AHEAD_AFTER_S - self._clock()))
        read_ahead(extent, self._stopping)

    def _fill(self, replica: ReplicaId, nbytes: int, source: ReplicaId | None) -> Event:
        self._memory.check_room(self._plans.descriptors_of(replica))
        if replica.place is FILE:
            return self._serve_in_place(replica)
        started = self._clock()
        lent = None if source is None else self.sealed.get(source)
        try:
            with Within(self._trace_of(replica.key)):
                extent = self._maker.make(replica, nbytes, source, lent)
        except BrokenSourceError as error:
            assert source is not None, "nothing else is copied"
            self._report_broken(source, lent, str(error.__cause__))
            raise error.__cause__ or error from None
        self.adopt(replica, extent)
        if not extent.fresh:
            self.verify_behind(replica, extent)
        return Filled(at_s=self._clock(), **_about(replica), cost_s=self._clock() - started)


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
