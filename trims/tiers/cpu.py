"""The CPU tier: images in shared memory. Of what kind, and whether it outlives the daemon, is the driver's affair."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from trims.core.errors import ImageError
from trims.core.place import CPU, Place
from trims.memory.large_pages import LargePages
from trims.memory.mapping import LARGE_PAGE_BYTES
from trims.tiers.base import Draft, Extent, explain_descriptors, identity_of
from trims.tiers.checking import Skipped, check_ends, verify_bytes

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from trims.memory.segments import Segment, SegmentDriver

log = logging.getLogger(__name__)


class CpuTier:
    """Sealed segments of one driver.

    Args:
        driver: Makes them.
        large_pages: Have the kernel use large pages for all segments that can.
    """

    place: Place = CPU
    hash_on_adoption: bool = True

    def __init__(self, driver: SegmentDriver, capacity_bytes: int, *, large_pages: bool = True) -> None:
        self.capacity_bytes = capacity_bytes
        self._large_pages = large_pages
        self._driver = driver
        self._drafts: dict[str, Segment] = {}
        self._open: dict[str, Extent] = {}
        self._skipped = Skipped(self.place)

    @property
    def skipped(self) -> int:
        """See `Tier.skipped`."""
        return len(self._skipped)

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`."""
        try:
            segment = self._driver.create(f"{key[:16]}-{os.getpid()}-{generation}", nbytes)
        except OSError as error:
            raise self.explain(error, nbytes) from error
        self._drafts[segment.name] = segment
        draft = Draft(segment.fd, nbytes, segment.name)
        try:
            if self._large_pages and nbytes >= LARGE_PAGE_BYTES:
                draft.pages = LargePages(segment.fd, nbytes)
            if allocate:
                self._allocate(segment, draft.pages)
        except OSError as error:
            self.abort(draft)
            raise self.explain(error, nbytes) from error
        except BaseException:
            self.abort(draft)
            raise
        return draft

    def _allocate(self, segment: Segment, pages: LargePages | None) -> None:
        if pages is not None:
            room = pages.reserve(0, segment.nbytes)
            if room is not None:
                room.release()
        self._driver.allocate(segment)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`."""
        _unmap(draft)
        sealed = self._driver.seal(self._drafts.pop(draft.label), key, digest)
        return self._hold(_extent(sealed, key, digest))

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`."""
        _unmap(draft)
        self._driver.discard(self._drafts.pop(draft.label))

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        explained = self._driver.explain(error, nbytes)
        return explain_descriptors(error) if explained is error else explained

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        self._driver.remove(extent.label)
        if self._open.pop(extent.label, None) is not None:
            extent.close()

    def scan(self) -> Iterator[Extent]:
        """See `Tier.scan`."""
        self._skipped = Skipped(self.place)
        for name in self._names():
            extent = self._find(name)
            if extent is not None:
                yield self._hold(extent)
        self._skipped.log_all()

    def leave(self, extent: Extent) -> None:
        """See `Tier.leave`."""
        self._open.pop(extent.label).close()

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier.verify`."""
        verify_bytes(extent, cancelled, pace)

    def close(self) -> None:
        """See `Tier.close`. Segments without a name go with their last reader."""
        for extent in self._open.values():
            extent.close()
        self._open.clear()

    def _hold(self, extent: Extent) -> Extent:
        self._open[extent.label] = extent
        return extent

    def _names(self) -> list[str]:
        try:
            return list(self._driver.names())
        except OSError as error:
            self._skipped.add("every segment", error)
            return []

    def _find(self, name: str) -> Extent | None:
        """Return the segment of this name; None if it is removed, left alone, or gone meanwhile."""
        try:
            return self._adopt(name)
        except ImageError as error:
            log.warning("segment %s is removed: %s", name, error)
            self._remove(name)
        except FileNotFoundError:
            log.info("segment %s went while it was looked for", name)
        except OSError as error:
            self._skipped.add(name, error)
        return None

    def _remove(self, name: str) -> None:
        try:
            self._driver.remove(name)
        except OSError as error:
            self._skipped.add(name, error)

    def _adopt(self, name: str) -> Extent:
        segment, key, digest = self._driver.open(name)
        try:
            check_ends(segment.fd, segment.nbytes)
            extent = _extent(segment, key, digest)
            extent.fresh, extent.identity = False, identity_of(segment.fd)
        except BaseException:
            segment.close()
            raise
        return extent


def _extent(sealed: Segment, key: str, digest: str) -> Extent:
    return Extent(key, CpuTier.place, sealed.nbytes, digest, sealed.fd, sealed.name, named=sealed.named)


def _unmap(draft: Draft) -> None:
    if draft.pages is not None:
        draft.pages.close()
