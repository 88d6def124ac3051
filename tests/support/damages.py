"""Ways to damage the file of an image behind the daemon's back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.tiers.base import Extent


def damage(extent: Extent, how: Callable[[int], object]) -> None:
    os.chmod(extent.label, 0o600)
    fd = os.open(extent.label, os.O_RDWR)
    how(fd)
    os.close(fd)
    os.chmod(extent.label, 0o400)


DAMAGES = {
    "a bit flipped": lambda extent: damage(extent, lambda fd: os.pwrite(fd, b"\xff\x00\xff", extent.nbytes - 99)),
    "the header overwritten": lambda extent: damage(extent, lambda fd: os.pwrite(fd, b"\0" * 64, 0)),
    "cut short": lambda extent: damage(extent, lambda fd: os.ftruncate(fd, extent.nbytes - 100)),
    "emptied": lambda extent: damage(extent, lambda fd: os.ftruncate(fd, 0)),
}
