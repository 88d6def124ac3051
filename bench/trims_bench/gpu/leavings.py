"""Remains of a part that was ended at its limit: segments in shared memory, and folders of its daemons.

A killed daemon cannot clean up, and no later one adopts what belongs to a state folder of the check's own.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from trims.daemon.main import shm_prefix
from trims.memory.shm import names, unlink

if TYPE_CHECKING:
    from pathlib import Path


def remove(work: Path) -> None:
    """Free the segments of every state folder under the check's work folder, and empty that folder of parts."""
    for catalog in work.rglob("catalog.db"):
        for name in list(names(shm_prefix(catalog.parent))):
            unlink(name)
    for part in work.glob("part-*"):
        shutil.rmtree(part, ignore_errors=True)
