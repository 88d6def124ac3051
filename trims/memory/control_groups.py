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
    mounted = _mounted(controller, root)
    for line in (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            usual, version = "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            usual, version = f"sys/fs/cgroup/{controller}", 1
        else:
            continue
        where, top = mounted.get(version, (usual, "/"))
        base = root / where
        # In a container the path may be the host's, and only a part of it be mounted.
        group = base / (path.removeprefix(top) if f"{path}/".startswith(f"{top}/") else path).strip("/")
        for folder in (group, *group.parents):
            yield folder, version
            if folder == base:
                break


def _mounted(controller: str, root: Path) -> dict[int, tuple[str, str]]:
    """Return where each version's groups are mounted: the folder, relative to `root`, and the group it shows."""
    found: dict[int, tuple[str, str]] = {}
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return found
    for line in lines:
        mount, _, of_type = line.partition(" - ")
        (_, _, _, top, where, *_), (kind, _, *options) = mount.split(), of_type.split(" ", 2)
        version = 2 if kind == "cgroup2" else 1
        if kind == "cgroup2" or (kind == "cgroup" and controller in " ".join(options).split(",")):
            found.setdefault(version, (where.strip("/"), top))
    return found
