"""Entry points of one group, without `importlib.metadata`, whose import and look take twenty times as long."""

from __future__ import annotations

import os
import sys

_ENDINGS = (".dist-info", ".egg-info")


def entry_points(group: str) -> dict[str, str]:
    """Return the values of a group's entry points by name, of packages in folders; the first on the path counts."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        try:
            names = [name for name in os.listdir(folder or os.curdir) if name.endswith(_ENDINGS)]
        except OSError:
            continue
        for name in names:
            lines = _read(os.path.join(folder, name, "entry_points.txt")).partition(f"[{group}]")[2].splitlines()
            for line in lines[1:]:
                key, sign, value = line.partition("=")
                if line.startswith("["):
                    break
                if sign and not line.startswith(("#", ";")):
                    found.setdefault(key.strip(), value.partition("[")[0].strip())
    return found


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, encoding="utf-8", errors="replace") as file:
        return file.read()
