"""Memory that a process keeps from others, as the kernel counts it in `/proc/PID/smaps_rollup`.

Counted are anonymous pages only. Pages of libraries, of files and of shared weights are not: the kernel drops them when
it needs room, or they are the store's. A page that several processes share counts in each of them by its part
(`Pss_Anon`), so the figures of a template and of what was forked from it can be added. Private pages alone would not
do: a template that has forked a predictor has hardly any.

The kernel walks the page table of the process, which takes milliseconds if it has a framework: call it in a thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from trims.core.errors import ConfigError

#: Fields for a process's part of its anonymous pages, and for the pages that only it has.
_SHARE, _OWN = "Pss_Anon", "Private_Dirty"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one process.

    Attributes:
        share_bytes: Proportional share of its anonymous pages (PSS).
        own_bytes: What its end surely gives back: pages that no other process has.
    """

    share_bytes: int
    own_bytes: int


def footprint(pid: int) -> Footprint | None:
    """Return the memory of a process; None if it is gone, or if the kernel does not report it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            lines = file.read().splitlines()[1:]
    except OSError:  # gone before, or while it was read; or of another user
        return None
    sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    return Footprint(sizes[_SHARE], sizes[_OWN]) if sizes.keys() >= {_SHARE, _OWN} else None


def require_footprints() -> None:
    """Raise ConfigError if this kernel does not report footprints, so that no bound could be kept."""
    if footprint(os.getpid()) is None:
        raise ConfigError(
            "--template-memory needs /proc/PID/smaps_rollup with Pss_Anon (Linux 5.4 or later), which is not here; "
            "leave the flag out, and let templates go by --template-keep-alive-s"
        )
