"""The CPU tier: images in named POSIX shared memory that outlives the daemon."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from trims.core.errors import ImageError
from trims.core.place import CPU, Place
from trims.image.reader import ImageView
from trims.memory import shm
from trims.memory.large_pages import LargePages
from trims.memory.mapping import LARGE_PAGE_BYTES
from trims.tiers.base import Draft, Extent
from trims.tiers.transfer import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)


class CpuTier:
    """Sealed segments under one prefix.

    Args:
        prefix: Names of all segments start with it; two daemons must not share one.
        capacity_bytes: What residency may put here.
        folder: The tmpfs that segments lie in.
        large_pages: Have the kernel use large pages for all segments that can.
    """

    place: Place = CPU

    def __init__(
        self, prefix: str, capacity_bytes: int, folder: Path = shm.SHM_FOLDER, *, large_pages: bool = True
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self._large_pages = large_pages
        self._folder = folder
        self._prefix = prefix
        self._open: dict[str, Extent] = {}

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`."""
        segment = shm.create(self._prefix, f"{key[:16]}-{os.getpid()}-{generation}", nbytes, self._folder)
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

    def _allocate(self, segment: shm.Segment, pages: LargePages | None) -> None:
        if pages is not None:
            room = pages.reserve(0, segment.nbytes)
            if room is not None:
                room.release()
        shm.allocate(segment)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`."""
        _unmap(draft)
        segment = shm.Segment(draft.label, draft.nbytes, draft.fd, self._folder)
        sealed = shm.seal(segment, self._prefix, key, digest)
        return self._hold(Extent(key, self.place, sealed.nbytes, digest, sealed.fd, sealed.name))

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`."""
        _unmap(draft)
        os.close(draft.fd)
        shm.unlink(draft.label, self._folder)

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        return shm.shm_full(error, nbytes, self._folder)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        shm.unlink(extent.label, self._folder)
        if self._open.pop(extent.label, None) is not None:
            os.close(extent.fd)

    def scan(self) -> Iterator[Extent]:
        """Adopt sealed segments whose bytes hash to what their name says; remove all others."""
        for name in shm.names(self._prefix, self._folder):
            try:
                extent = self._check(name)
            except (ImageError, OSError) as error:
                log.warning("segment %s is removed: %s", name, error)
                shm.unlink(name, self._folder)
            else:
                yield self._hold(extent)

    def close(self) -> None:
        """See `Tier.close`."""
        for extent in self._open.values():
            os.close(extent.fd)
        self._open.clear()

    def _hold(self, extent: Extent) -> Extent:
        self._open[extent.label] = extent
        return extent

    def _check(self, name: str) -> Extent:
        stated = shm.parse_name(self._prefix, name)
        if stated is None:
            raise ImageError("it was never finished")
        segment = shm.open_sealed(name, self._folder)
        try:
            check_image(segment.fd, segment.nbytes, stated[1])
        except BaseException:
            segment.close()
            raise
        return Extent(stated[0], self.place, segment.nbytes, stated[1], segment.fd, name)


def _unmap(draft: Draft) -> None:
    if draft.pages is not None:
        draft.pages.close()


def check_image(fd: int, nbytes: int, digest: str) -> None:
    """Check that a file is an image with these bytes. Raises ImageError naming what differs."""
    import mmap

    if nbytes == 0:
        raise ImageError("it is empty")
    found = digest_of(fd, nbytes)
    if found != digest:
        raise ImageError(f"its bytes hash to {found[:16]}..., {digest[:16]}... was sealed: changed or truncated")
    with mmap.mmap(fd, nbytes, prot=mmap.PROT_READ) as data, memoryview(data) as view:
        image = ImageView(view)
        image.validate()
        del image
