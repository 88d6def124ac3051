"""Memory that this process may still take: what the machine has, and what its control groups allow.

Memory without a file system has no size of its own that could be full: a process that takes more than there is gets the
kernel's out-of-memory killer instead of an error. So it is asked beforehand. Not covered: what others take meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trims.memory.control_groups import groups

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")


class _Names(NamedTuple):
    """Names of a control group's files, and of the page cache in its statistics."""

    limit: str
    used: str
    cache: tuple[str, str]


_V2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def allowed_bytes(root: Path = _ROOT) -> int:
    """Return the most this process could ever have: all memory, or what its tightest control group allows.

    Args:
        root: Where `proc` and `sys` lie.
    """
    return min([_meminfo(root, "MemTotal"), *(_read(folder / names.limit) for folder, names in _groups(root))])


def group_bytes(root: Path = _ROOT) -> int | None:
    """Return the limit of this process's tightest control group; None if none allows less than the machine has.

    Args:
        root: Where `proc` and `sys` lie.
    """
    try:
        allowed = allowed_bytes(root)
        return allowed if allowed < _meminfo(root, "MemTotal") else None
    except (OSError, ValueError):  # such as a group that is removed meanwhile
        return None


def available_bytes(root: Path = _ROOT) -> int:
    """Return the bytes that can be taken now without pushing anything out but page cache. Swap does not count.

    Args:
        root: Where `proc` and `sys` lie.
    """
    rooms = [
        _read(folder / names.limit) - _read(folder / names.used) + _cache_bytes(folder, names)
        for folder, names in _groups(root)
    ]
    return max(0, min([_meminfo(root, "MemAvailable"), *rooms]))


def _meminfo(root: Path, field: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    raise OSError(f"/proc/meminfo has no {field}")


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the folders of this process's control groups that limit memory, up to the root."""
    for folder, version in groups("memory", root):
        names = _V2 if version == 2 else _V1
        if (folder / names.limit).exists() and (folder / names.limit).read_text().strip() != "max":
            yield folder, names


def _read(file: Path) -> int:
    return int(file.read_text())


def _cache_bytes(folder: Path, names: _Names) -> int:
    fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(fields.get(name, 0)) for name in names.cache)
