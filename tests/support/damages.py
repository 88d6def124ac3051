"""Ways to damage the file of an image behind the daemon's back, and files of artifacts at random."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from trims.core.errors import TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.image.in_place import InPlacePlan
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


def refusals_of_random_damage(path: Path, planned: Callable[[], InPlacePlan]) -> int:
    """Return how often a plan was refused, of 400 that are made of a file with wrong bytes; no other leads outside."""
    good, chance, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(chance.choice([1, 2, 20])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            plan = planned()
        except TrimsError:
            refused += 1
        else:
            assert all(part.offset + part.nbytes <= path.stat().st_size for part in plan.pages)
    return refused
