"""The CPU tier: images in shared memory. Of what kind, and whether it outlives the daemon, is the driver's affair."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from trims.core.errors import ImageError
from trims.core.place import CPU, Place
from trims.memory.large_pages import LargePages
from trims.memory.mapping import LARGE_PAGE_BYTES
from trims.tiers.base import Draft, Extent
from trims.tiers.transfer import check_bytes, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.memory.segments import Segment, SegmentDriver

log = logging.getLogger(__name__)


class CpuTier:
    """Sealed segments of one driver.

    Args:
        driver: Makes them.
        capacity_bytes: What residency may put here.
        large_pages: Have the kernel use large pages for all segments that can.
    """

    place: Place = CPU

    def __init__(self, driver: SegmentDriver, capacity_bytes: int, *, large_pages: bool = True) -> None:
        self.capacity_bytes = capacity_bytes
        self._large_pages = large_pages
        self._driver = driver
        self._drafts: dict[str, Segment] = {}
        self._open: dict[str, Extent] = {}

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`."""
        segment = self._driver.create(f"{key[:16]}-{os.getpid()}-{generation}", nbytes)
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
        return self._driver.explain(error, nbytes)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        self._driver.remove(extent.label)
        if self._open.pop(extent.label, None) is not None:
            os.close(extent.fd)

    def scan(self) -> Iterator[Extent]:
        """Adopt sealed segments whose bytes hash to what they were sealed with; remove all others."""
        for name in self._driver.names():
            try:
                extent = self._check(name)
            except (ImageError, OSError) as error:
                log.warning("segment %s is removed: %s", name, error)
                self._driver.remove(name)
            else:
                yield self._hold(extent)

    def close(self) -> None:
        """See `Tier.close`. Segments without a name go with their last reader."""
        for extent in self._open.values():
            os.close(extent.fd)
        self._open.clear()

    def _hold(self, extent: Extent) -> Extent:
        self._open[extent.label] = extent
        return extent

    def _check(self, name: str) -> Extent:
        segment, key, digest = self._driver.open(name)
        try:
            check_image(segment.fd, segment.nbytes, digest)
        except BaseException:
            segment.close()
            raise
        return _extent(segment, key, digest)


def _extent(sealed: Segment, key: str, digest: str) -> Extent:
    return Extent(key, CpuTier.place, sealed.nbytes, digest, sealed.fd, sealed.name, named=sealed.named)


def _unmap(draft: Draft) -> None:
    if draft.pages is not None:
        draft.pages.close()


def check_image(fd: int, nbytes: int, digest: str) -> None:
    """Check that a file is an image with these bytes. Raises ImageError naming what differs."""
    if nbytes == 0:
        raise ImageError("it is empty")
    found = digest_of(fd, nbytes)
    if found != digest:
        raise ImageError(f"its bytes hash to {found[:16]}..., {digest[:16]}... was sealed: changed or truncated")
    check_bytes(fd, nbytes)
