"""The tier of files: artifacts whose tensors lie in their own files as they are in memory, served where they are.

Nothing is copied, so nothing is charged but descriptors: one for the head and one for each file. What such a replica
promises is what a mapped file promises. A program that rewrites the file in place changes what readers see, and one
that cuts it short ends readers of the missing part by SIGBUS. A file that is replaced by a rename harms no reader.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from trims.core.errors import NotSupportedError
from trims.core.place import FILE, Place
from trims.image.source import open_source
from trims.memory.memfd import sealed_file, write_all
from trims.memory.pages import Pages
from trims.tiers.base import Draft, Extent, explain_descriptors

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from trims.image.in_place import InPlacePlan


class FileTier:
    """Artifacts that are open. A replica here is made by `serve`; nothing can be copied here."""

    place: Place = FILE
    hash_on_adoption: bool = False
    capacity_bytes: int = sys.maxsize
    skipped: int = 0

    def __init__(self) -> None:
        self._open: dict[str, Extent] = {}

    def serve(self, key: str, generation: int, plan: InPlacePlan) -> Extent:
        """See `InPlaceTier.serve`."""
        fds: list[int] = []
        try:
            for part in plan.pages:
                with open_source(part.file.path) as fd:
                    part.file.check(fd)
                    fds.append(os.dup(fd))
            fds.append(sealed_file("trims-head", plan.nbytes, lambda fd: write_all(fd, plan.head, 0)))
        except OSError as error:
            _close(fds)
            raise explain_descriptors(error) from error
        except BaseException:
            _close(fds)
            raise
        parts = zip(fds, plan.pages, strict=False)  # the last descriptor is the head's
        pages = tuple(Pages(fd, part.begin, part.nbytes, part.offset) for fd, part in parts)
        label = f"{plan.pages[0].file.path if plan.pages else key} ({generation})"
        extent = Extent(key, self.place, plan.nbytes, "", fds[-1], label, named=False, pages=pages)
        self._open[label] = extent
        return extent

    def free(self, extent: Extent) -> None:
        """See `Tier.free`. The files are the user's, and stay."""
        if self._open.pop(extent.label, None) is not None:
            extent.close()

    def close(self) -> None:
        """See `Tier.close`."""
        for extent in self._open.values():
            extent.close()
        self._open.clear()

    def scan(self) -> Iterator[Extent]:
        """See `Tier.scan`. What was open went with the daemon that had it open."""
        return iter(())

    def leave(self, extent: Extent) -> None:
        """See `Tier.leave`."""
        self.free(extent)

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier.verify`. There is no digest to compare with: the artifact was not sealed."""

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier.create`. Raises NotSupportedError always."""
        del key, generation, nbytes, allocate
        raise NotSupportedError("nothing can be copied to where artifacts lie; choose cpu or disk")

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`. There are no drafts."""
        del draft, key, digest
        raise NotSupportedError("nothing can be sealed where artifacts lie; choose cpu or disk")

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`. There are no drafts."""

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier.explain`."""
        del nbytes
        return explain_descriptors(error)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
