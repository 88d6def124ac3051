"""Carrying out what takes time: measuring, filling, freeing.

Workers report every outcome as an event, never by raising. Extents and running conversions live here, keyed by image,
place and generation. Not covered: who asked, and what to do about an outcome (`store`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import ConversionError, ImageError, InternalError, LostPeerError, TrimsError
from trims.core.events import Event, Filled, FillFailed, Freed, Measured, ReplicaBroken
from trims.formats.conversion import Conversion, start_conversion
from trims.tiers.base import DeviceTier
from trims.tiers.transfer import check_bytes, copy, default_threads, digest_by_reading, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trims.core.place import Place
    from trims.formats.base import Limits
    from trims.store.resolve import Resolved
    from trims.tiers.base import Draft, Extent, Tier
    from trims.trace.spans import Tracer

log = logging.getLogger(__name__)
_LOW_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Job:
    """One replica that is being worked on."""

    key: str
    place: Place
    generation: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a fill is, in bytes; `total_bytes` is 0 while it is being measured."""

    done_bytes: int
    total_bytes: int


class Runner:
    """Workers over tiers.

    Args:
        tiers: By place.
        limits: For converter children.
        tracer: Every step becomes a span.
        report: Called with the event each job ends in, from a worker.
        workers: Fills that run at once.
        converters: Conversions that are planned or running at once; each may be a process with a framework in it.
    """

    def __init__(
        self,
        tiers: Mapping[Place, Tier],
        limits: Limits,
        tracer: Tracer,
        report: Callable[[Event], None],
        *,
        workers: int = 4,
        converters: int = 2,
    ) -> None:
        self._tiers = tiers
        self._limits = limits
        self._tracer = tracer
        self._report = report
        self._fillers = ThreadPoolExecutor(workers, thread_name_prefix="trims-fill")
        self._planners = ThreadPoolExecutor(converters, thread_name_prefix="trims-plan")
        self._freers = ThreadPoolExecutor(1, thread_name_prefix="trims-free")
        #: A device that does not answer must hold up nobody but those who wait for it: (copies, frees) of each.
        self._of_devices = {
            place: (
                ThreadPoolExecutor(workers, thread_name_prefix=f"trims-fill-{place}"),
                ThreadPoolExecutor(1, thread_name_prefix=f"trims-free-{place}"),
            )
            for place, tier in tiers.items()
            if isinstance(tier, DeviceTier)
        }
        #: Shared by all fills: more copies at once than there are processors only slow whoever answers clients.
        self._readers = ThreadPoolExecutor(default_threads(), thread_name_prefix="trims-copy", initializer=_step_back)
        self._slots = threading.Semaphore(converters)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._extents: dict[Job, Extent] = {}
        self._conversions: dict[Job, Conversion] = {}
        self._wanted: set[Job] = set()
        self._progress: dict[tuple[str, Place], Progress] = {}

    # -- extents ---------------------------------------------------------------------------------------------------

    def extent(self, job: Job) -> Extent | None:
        """The memory of a sealed replica."""
        with self._lock:
            return self._extents.get(job)

    def extents(self) -> dict[Job, Extent]:
        """All of them, now."""
        with self._lock:
            return dict(self._extents)

    def adopt(self, job: Job, extent: Extent) -> None:
        """A replica found by a tier's scan."""
        with self._lock:
            self._extents[job] = extent

    def progress(self, key: str, place: Place) -> Progress | None:
        """How far the fill is; None if there is none running."""
        return self._progress.get((key, place))

    # -- jobs ------------------------------------------------------------------------------------------------------

    def measure(self, job: Job, resolved: Resolved) -> None:
        """Plan the conversion of the artifact; ends in Measured or FillFailed."""
        with self._lock:
            self._wanted.add(job)
        self._submit(self._planners, job, lambda: self._measure(job, resolved))

    def abandon(self, job: Job) -> None:
        """Nobody waits any more: stop planning, drop the plan."""
        with self._lock:
            self._wanted.discard(job)
            conversion = self._conversions.get(job)
        if conversion is not None:
            conversion.cancel()
            self._freers.submit(self._drop_conversion, job)

    def fill(self, job: Job, nbytes: int, source: Job | None) -> None:
        """Fill from a sealed replica, or from the planned conversion; ends in Filled or FillFailed.

        A source that turns out broken is reported with ReplicaBroken first.
        """
        if source is not None:
            self.abandon(job)  # while it was measured, the image came to lie somewhere
        device = next((it for it in (job, source) if it is not None and it.place in self._of_devices), None)
        fillers = self._fillers if device is None else self._of_devices[device.place][0]
        self._submit(fillers, job, lambda: self._fill(job, nbytes, source))

    def free(self, job: Job) -> None:
        """Give the memory back; ends in Freed."""
        freers = self._of_devices[job.place][1] if job.place in self._of_devices else self._freers
        freers.submit(self._guard, job, lambda: self._free(job))

    def finish(self) -> None:
        """Cancel what is being planned and filled, and wait for its end. From now on only freeing is done."""
        with self._lock:
            self._stopping.set()
            conversions = list(self._conversions.values())
        for conversion in conversions:
            conversion.cancel()
        copiers = [copier for copier, _ in self._of_devices.values()]
        for pool in (self._planners, self._fillers, *copiers, self._readers):
            pool.shutdown(wait=True)

    def stop(self) -> None:
        """Finish, and close the tiers. Sealed replicas stay."""
        self.finish()
        for pool in (self._freers, *(freer for _, freer in self._of_devices.values())):
            pool.shutdown(wait=True)
        for job in list(self._conversions):
            self._drop_conversion(job)
        for tier in self._tiers.values():
            tier.close()

    def _submit(self, pool: ThreadPoolExecutor, job: Job, work: Callable[[], Event]) -> None:
        with self._lock:
            ending = self._stopping.is_set()
            if not ending:
                pool.submit(self._guard, job, work)
        if ending:
            self._report(self._failure(job, LostPeerError("the daemon is shutting down")))

    def _guard(self, job: Job, work: Callable[[], Event]) -> None:
        try:
            event = work()
        except TrimsError as error:
            event = self._failure(job, error)
        except OSError as error:
            event = self._failure(job, InternalError(f"{job.key[:16]} at {job.place}: {error}"))
        except Exception as error:
            log.exception("a worker failed on %s at %s", job.key[:16], job.place)
            event = self._failure(job, InternalError(f"{type(error).__name__}: {error}"))
        self._progress.pop((job.key, job.place), None)
        self._report(event)

    def _failure(self, job: Job, error: TrimsError) -> FillFailed:
        self._drop_conversion(job)
        return FillFailed(at_s=time.monotonic(), key=job.key, place=job.place, generation=job.generation, error=error)

    # -- measuring -------------------------------------------------------------------------------------------------

    def _measure(self, job: Job, resolved: Resolved) -> Event:
        self._slots.acquire()
        origin = resolved.manifest.origin
        conversion = start_conversion(
            resolved.artifact,
            python=resolved.python,
            limits=self._limits,
            extra_paths=[Path(origin)] if origin else [],
        )
        with self._lock:
            self._conversions[job] = conversion
            wanted = job in self._wanted and not self._stopping.is_set()
        if not wanted:
            conversion.cancel()
        with self._tracer.span("convert.plan", model=resolved.name) as span:
            nbytes = conversion.plan()
            span.attributes["image_bytes"] = nbytes
        return Measured(at_s=time.monotonic(), key=job.key, place=job.place, generation=job.generation, nbytes=nbytes)

    def _drop_conversion(self, job: Job) -> None:
        with self._lock:
            conversion = self._conversions.pop(job, None)
            self._wanted.discard(job)
        if conversion is not None:
            conversion.close()
            self._slots.release()

    # -- filling ---------------------------------------------------------------------------------------------------

    def _fill(self, job: Job, nbytes: int, source: Job | None) -> Event:
        started = time.monotonic()
        tier = self._tiers[job.place]
        name = f"fill.{job.place}" if source is None else f"copy.{source.place}-{job.place}"
        with self._tracer.span(name, key=job.key[:16], image_bytes=nbytes):
            draft = tier.create(job.key, job.generation, nbytes, allocate=source is None)
            try:
                digest = self._convert(job, draft) if source is None else self._copy(job, draft, source)
            except OSError as error:
                tier.abort(draft)
                raise tier.explain(error, nbytes) from error
            except BaseException:
                tier.abort(draft)
                raise
            try:
                extent = tier.seal(draft, job.key, digest)
            except OSError as error:
                raise tier.explain(error, nbytes) from error
            extent.identity = _identity(extent.fd)
        with self._lock:
            self._extents[job] = extent
        return Filled(
            at_s=time.monotonic(),
            key=job.key,
            place=job.place,
            generation=job.generation,
            cost_s=time.monotonic() - started,
        )

    def _convert(self, job: Job, draft: Draft) -> str:
        with self._lock:
            conversion = self._conversions.get(job)
        if conversion is None:
            raise InternalError("a fill from the artifact came without a plan")
        try:
            conversion.write(draft.fd, lambda done: self._tell(job, done, draft.nbytes))
        finally:
            self._drop_conversion(job)
        check_bytes(draft.fd, draft.nbytes)  # a converter child is not trusted
        return digest_of(draft.fd, draft.nbytes)

    def _copy(self, job: Job, draft: Draft, source: Job) -> str:
        extent = self.extent(source)
        if extent is None:
            raise InternalError(f"{source.key[:16]} at {source.place} is borrowed but has no memory")
        try:
            return self._copy_checked(job, draft, extent)
        except ImageError as error:
            broken = ReplicaBroken(
                at_s=time.monotonic(),
                key=source.key,
                place=source.place,
                generation=source.generation,
                reason=str(error),
            )
            self._report(broken)
            raise

    def _copy_checked(self, job: Job, draft: Draft, source: Extent) -> str:
        target_tier, source_tier = self._tiers[job.place], self._tiers[source.place]
        if isinstance(target_tier, DeviceTier):
            if isinstance(source_tier, DeviceTier):
                target_tier.copy_across(draft, source, lambda done: self._tell_or_stop(job, done, draft.nbytes))
                return source.digest
            with self._checking(source):
                target_tier.copy_in(draft, source, lambda done: self._tell_or_stop(job, done, draft.nbytes))
        elif isinstance(source_tier, DeviceTier):
            source_tier.copy_out(source, draft, lambda done: self._tell_or_stop(job, done, draft.nbytes))
            self._check_source(source, draft.fd)
        else:
            self._copy_on_host(job, draft, source)
            self._check_source(source, draft.fd)
        return source.digest

    def _copy_on_host(self, job: Job, draft: Draft, source: Extent) -> None:
        copy(
            source.fd,
            draft.fd,
            draft.nbytes,
            on_progress=lambda done: self._tell(job, done, draft.nbytes),
            cancelled=self._stopping,
            readers=self._readers,
            pages=draft.pages,
        )

    @contextlib.contextmanager
    def _checking(self, source: Extent) -> Iterator[None]:
        """Hash the source while the block copies it: what lies on a device cannot be read back cheaply."""
        if _is_known(source):
            yield
            return
        with ThreadPoolExecutor(1, thread_name_prefix="trims-check") as pool:
            checked = pool.submit(self._check_source, source, source.fd, digest_by_reading)
            yield
            checked.result()

    def _check_source(self, source: Extent, fd: int, digest: Callable[[int, int], str] = digest_of) -> None:
        """Hash its bytes, which `fd` has, unless they are known to be as they were sealed."""
        if _is_known(source):
            return
        found = digest(fd, source.nbytes)
        if found != source.digest:
            raise ImageError(
                f"the replica at {source.place} ({source.label}) hashes to {found[:16]}..., "
                f"{source.digest[:16]}... was sealed: changed or truncated"
            )
        source.fresh, source.identity = True, _identity(source.fd)

    def _tell_or_stop(self, job: Job, done_bytes: int, total_bytes: int) -> None:
        if self._stopping.is_set():
            raise ConversionError("the copy was cancelled")
        self._tell(job, done_bytes, total_bytes)

    def _tell(self, job: Job, done_bytes: int, total_bytes: int) -> None:
        self._progress[job.key, job.place] = Progress(done_bytes, total_bytes)

    # -- freeing ---------------------------------------------------------------------------------------------------

    def _free(self, job: Job) -> Event:
        with self._lock:
            extent = self._extents.pop(job, None)
        if extent is not None:
            with self._tracer.span(f"free.{job.place}", key=job.key[:16], image_bytes=extent.nbytes):
                self._tiers[job.place].free(extent)
        return Freed(at_s=time.monotonic(), key=job.key, place=job.place, generation=job.generation)


def _step_back() -> None:
    """Let this thread run when others do not want to: it is inside one system call for most of its life."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)


def _identity(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_known(extent: Extent) -> bool:
    """True if its bytes were seen to be right in this life, and nobody has touched the file since."""
    return extent.fresh and extent.identity in (None, _identity(extent.fd))
