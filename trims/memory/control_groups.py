"""The control groups that a process is in: folders whose files say what it may take, of either version."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def groups(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Folders of the control groups this process is in, from its own up to the root, each with its version: 1 or 2.

    A folder need not exist, nor have the controller's files.

    Args:
        controller: `memory` or `cpu`.
        root: Where `proc` and `sys` lie.
    """
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            base, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        # In a container the path may be the host's, and only the base be there.
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            yield folder, version
            if folder == base:
                break
