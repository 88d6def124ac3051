"""A tier from outside trims: images on several disks, each image where most room is.

Every disk is a `DiskTier` of trims. So writing, sealing and checking are done already, and this tier only chooses.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, ConfigError
from trims.core.place import DISK, Place
from trims.tiers.disk import DiskTier, disk_full

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from trims.tiers.base import Draft, Extent, TierSettings

log = logging.getLogger(__name__)


def open_several(settings: TierSettings) -> SeveralDisks:
    """The entry point: `several:/mnt/a,/mnt/b`."""
    if settings.place is not DISK:
        raise ConfigError(f"several disks are a disk tier; they cannot be the tier at {settings.place}")
    disks: list[Disk] = []
    for text in settings.argument.split(","):
        folder = Path(text)
        if not folder.is_absolute() or not folder.is_dir():
            raise ConfigError(f"{text!r} is not the absolute path of a folder that is there; mount it, or leave it out")
        if any(folder.samefile(disk.folder) for disk in disks):
            raise ConfigError(f"{folder} is named twice; leave one out")
        # Daemons may share a disk, so each has a folder of its own there.
        tier = DiskTier(folder / settings.prefix, settings.capacity_bytes)
        disks.append(Disk(folder, folder.stat().st_dev, tier))
    return SeveralDisks(disks, settings.capacity_bytes)


@dataclass(frozen=True)
class Disk:
    """One of the disks.

    Attributes:
        folder: As the setting names it.
        device: That the folder lay on when the daemon started.
    """

    folder: Path
    device: int
    tier: DiskTier

    def room_bytes(self) -> int:
        """What is free; -1 if the disk is gone, so that nothing is written to the empty folder it was mounted on."""
        try:
            held, device = os.statvfs(self.folder), self.folder.stat().st_dev
        except OSError:
            device = -1
        if device != self.device:
            log.warning("%s is not the disk it was when the daemon started; nothing is written there", self.folder)
            return -1
        return held.f_bavail * held.f_frsize


class SeveralDisks:
    """See `trims.tiers.base.Tier`. A label is a path, which tells the disk: nothing else is to be remembered."""

    place: Place = DISK
    hash_on_adoption = False

    def __init__(self, disks: list[Disk], capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._disks = disks

    @property
    def skipped(self) -> int:
        """On all disks."""
        return sum(disk.tier.skipped for disk in self._disks)

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """On the disk with most room; if the image does not fit there after all, on the next."""
        refusal = CapacityError(f"none of the disks {self._names()} is there; mount them, then start the daemon again")
        by_room = {disk.folder: disk.room_bytes() for disk in self._disks}
        for disk in sorted(self._disks, key=lambda disk: by_room[disk.folder], reverse=True):
            if by_room[disk.folder] >= 0:
                try:
                    return disk.tier.create(key, generation, nbytes, allocate=allocate)
                except CapacityError as error:
                    refusal = error
        raise refusal

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """Where the draft is."""
        return self._tier(draft).seal(draft, key, digest)

    def abort(self, draft: Draft) -> None:
        """Where the draft is."""
        self._tier(draft).abort(draft)

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """The error does not say which disk was full."""
        return disk_full(error, nbytes, Path(self._names()))

    def free(self, extent: Extent) -> None:
        """Where the image is."""
        self._tier(extent).free(extent)

    def scan(self) -> Iterator[Extent]:
        """All that lies on any of the disks."""
        for disk in self._disks:
            yield from disk.tier.scan()

    def leave(self, extent: Extent) -> None:
        """Where the image is."""
        self._tier(extent).leave(extent)

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """Where the image is."""
        self._tier(extent).verify(extent, cancelled, pace)

    def close(self) -> None:
        """On all disks."""
        for disk in self._disks:
            disk.tier.close()

    def _tier(self, held: Draft | Extent) -> DiskTier:
        return next(disk.tier for disk in self._disks if Path(held.label).parent.parent == disk.folder)

    def _names(self) -> str:
        return ", ".join(str(disk.folder) for disk in self._disks)
