"""Making an image in memory of a tier: from a sealed replica, from a converter, or by serving the files as they are.

Not covered: order, workers and tenants (`runner`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.background.rate_limit import Behind
from trims.core.errors import (
    CapacityError,
    DeviceLostError,
    ImageError,
    InternalError,
    NoSpaceError,
    TrimsError,
    is_system_error,
)
from trims.core.place import CLOUD, FILE
from trims.store.fill.copying import Copier
from trims.tiers.base import DeviceTier, InPlaceTier
from trims.trace.spans import span

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from trims.background.rate_limit import RateLimiter
    from trims.background.task import Order
    from trims.core.place import Place
    from trims.core.replica import ReplicaId
    from trims.store.fill.copying import HostBytes
    from trims.store.fill.plans import Plans
    from trims.tiers.base import Draft, Extent, Tier


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a fill, in bytes; `total_bytes` is 0 while it is being measured."""

    done_bytes: int
    total_bytes: int


class BrokenSourceError(Exception):
    """A replica that was copied from has wrong bytes, or none: its device is lost.

    Not of trims's tree: the runner reports it with its cause.
    """


class ImageMaker:
    """Makes images.

    Args:
        plans: Conversions that were planned.
        pace: Rate limiter of images that no request waits for.
        is_awaited: Whether a request waits for a replica; asked again and again while it is made.
        stopping: Set when copies are to stop.
    """

    def __init__(
        self,
        tiers: Mapping[Place, Tier],
        plans: Plans,
        host: HostBytes,
        pace: RateLimiter,
        *,
        is_awaited: Callable[[ReplicaId], bool],
        stopping: threading.Event,
    ) -> None:
        self._tiers = tiers
        files = tiers.get(FILE)
        #: Cached check: asking an object for all that a protocol has takes longer than opening a file.
        self._files = files if isinstance(files, InPlaceTier) else None
        self._plans = plans
        self._host = host
        self._pace = pace
        self._is_awaited = is_awaited
        self._stopping = stopping
        self._copier = Copier(host, stopping)
        self._progress: dict[tuple[str, Place], Progress] = {}

    def progress(self, key: str, place: Place) -> Progress | None:
        """Return how far the image is; None if it is not being made."""
        return self._progress.get((key, place))

    def forget(self, replica: ReplicaId) -> None:
        """Forget the progress of an image that is made, or that is not made after all. Idempotent."""
        self._progress.pop((replica.key, replica.place), None)

    def serve_in_place(self, replica: ReplicaId) -> Extent:
        """Open the artifact's own files."""
        assert self._files is not None, "there is one tier of files"
        with span("open.file", key=replica.key[:16]):
            return self._files.serve(replica.key, replica.generation, self._plans.take_in_place(replica))

    def make(self, replica: ReplicaId, nbytes: int, source: ReplicaId | None, extent: Extent | None) -> Extent:
        """Make an image and seal it.

        Args:
            source: Sealed replica to copy; None to convert the artifact as it was planned.
            extent: Memory of the source.

        Raises BrokenSourceError from an ImageError or a DeviceLostError; TrimsError, OSError.
        """
        tier = self._tiers[replica.place]
        name = f"fill.{replica.place}" if source is None else f"copy.{source.place}-{replica.place}"
        with span(name, key=replica.key[:16], image_bytes=nbytes):
            draft, digest = self._draft(tier, replica, nbytes, source, extent)
            try:
                made = tier.seal(draft, replica.key, digest)
            except TrimsError:
                raise
            except OSError as error:
                raise tier.explain(error, nbytes) from error
            self._identify(tier, made)
            # What came over a network was compared by checksums that no attacker is kept out by.
            made.fetched = source is not None and source.place is CLOUD
            made.fresh = not made.fetched
            return made

    def _draft(
        self, tier: Tier, replica: ReplicaId, nbytes: int, source: ReplicaId | None, extent: Extent | None
    ) -> tuple[Draft, str]:
        """Return a draft with the image in it, and the image's digest.

        Rate-limited while no request waits for the image. Once one does, the draft is made again, without a limit.
        """
        behind = self._behind(replica)
        from_host = source is not None and source.place is not CLOUD
        carried = behind is not None and (from_host or (source is None and self._plans.is_carriable(replica)))
        while True:
            draft = tier.create(replica.key, replica.generation, nbytes, allocate=source is None and not carried)
            try:
                if source is not None:
                    digest = self._copy(replica, draft, source, extent, behind)
                elif behind is not None and carried:
                    digest = self._carry(replica, draft, behind)
                else:
                    digest = self._convert(replica, draft, behind)
            except BaseException as error:
                tier.abort(draft)
                if is_system_error(error):
                    raise tier.explain(error, nbytes) from error
                if isinstance(error, NoSpaceError) and from_host:  # of a device; this place has given its room
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
            def report(done_bytes: int) -> None:
                if order.target is not None:  # else it is there, and is hashed
                    self._report(replica, done_bytes, draft.nbytes)
                on_progress(done_bytes)

            return behind.carry(order, report)

        digest = self._plans.carry(replica, by, draft.fd, large_pages=draft.pages is not None)
        if digest is not None:
            self._host.check(draft.fd, draft.nbytes)
        return digest

    def _convert(self, replica: ReplicaId, draft: Draft, behind: Behind | None) -> str:
        def report(done_bytes: int) -> None:
            self._report(replica, done_bytes, draft.nbytes)
            if behind is not None:
                behind.done(done_bytes)

        self._plans.write(replica, draft.fd, draft.nbytes, report)
        self._host.check(draft.fd, draft.nbytes)  # a converter child is not trusted
        return self._host.digest(draft.fd, draft.nbytes, behind)

    def _behind(self, replica: ReplicaId) -> Behind | None:
        """Return the rate limit of a fill that no request waits for; None if one does."""
        if self._is_awaited(replica):
            return None
        return Behind(self._pace, lambda: self._is_awaited(replica) or self._stopping.is_set())

    def _copy(
        self, replica: ReplicaId, draft: Draft, source: ReplicaId, extent: Extent | None, behind: Behind | None
    ) -> str | None:
        if extent is None:
            raise InternalError(f"{source.key[:16]} at {source.place} is borrowed but has no memory")
        target, origin = self._tiers[replica.place], self._tiers[source.place]
        try:
            return self._copier.copy(
                target,
                draft,
                origin,
                extent,
                lambda done: self._report(replica, done, draft.nbytes),
                behind=behind,
            )
        except ImageError as error:
            raise BrokenSourceError from error
        except DeviceLostError as error:
            if isinstance(target, DeviceTier):  # which of the two is lost is not known
                raise
            raise BrokenSourceError from error

    def _report(self, replica: ReplicaId, done_bytes: int, total_bytes: int) -> None:
        self._progress[replica.key, replica.place] = Progress(done_bytes, total_bytes)
