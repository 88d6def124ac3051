"""Record of when sharing pays on this host: written by `trims doctor --sharing`, followed by the daemon.

Sessions learn the threshold with the daemon's first answer, and clients of transparent loaders keep to it. A record of
another host or another release counts as none.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import trims
from trims.core.sharing import bounded

if TYPE_CHECKING:
    from pathlib import Path

#: Name of the file in the state folder, and beginning of the name of a folder there while it is measured.
NAME, SCRATCH = "sharing.json", "sharing-"


def read_sharing(state_dir: Path) -> dict[str, Any] | None:
    """Return the record of this host and release; None if there is none, or it cannot be read."""
    try:
        found = json.loads((state_dir / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    here = {"host": os.uname().nodename, "release": trims.__version__}
    if not isinstance(found, dict) or any(found.get(key) != value for key, value in here.items()):
        return None
    return found if type(found.get("share_from_bytes")) is int else None


def share_from(state_dir: Path) -> int | None:
    """Return the bytes from which on sharing a file pays; None if that was not measured."""
    found = read_sharing(state_dir)
    return None if found is None else bounded(found["share_from_bytes"])


def write_sharing(state_dir: Path, measured: dict[str, Any]) -> dict[str, Any]:
    """Keep what was measured. Return the record. Raises OSError."""
    found = {"host": os.uname().nodename, "release": trims.__version__, **measured}
    new = state_dir / f"{NAME}.new"
    new.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    new.replace(state_dir / NAME)
    return found
