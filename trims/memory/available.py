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
#: Part of a control group's limit, as a divisor, that images leave free: at the limit the kernel ends a process.
_LEFT_PART = 16


class _Names(NamedTuple):
    """Names of a control group's files, and of the page cache in its statistics.

    Pages of shared memory count among the used, and in none of the two names: only swap could take them.
    """

    limits: tuple[str, ...]
    used: str
    cache: tuple[str, str]


_V2 = _Names(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))
_V1 = _Names(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def allowed_bytes(root: Path = _ROOT) -> int:
    """Return the most this process could ever have: all memory, or what its tightest control group allows.

    Args:
        root: Where `proc` and `sys` lie.
    """
    return min([_meminfo(root, "MemTotal"), *(limit for _, _, limit in _groups(root))])


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
    return max(0, min([_meminfo(root, "MemAvailable"), *(room for _, room in _rooms(root))]))


def room_bytes(root: Path = _ROOT) -> int:
    """Return the bytes that images may take now: what is available, less the part of each limit that they leave free.

    Args:
        root: Where `proc` and `sys` lie.
    """
    return max(0, min([_meminfo(root, "MemAvailable"), *(room - limit // _LEFT_PART for limit, room in _rooms(root))]))


def missing_bytes(root: Path = _ROOT) -> int:
    """Return the bytes that images must give up, so that each control group has that part of its limit left, or 0.

    A limit may have been lowered, and other processes of the group may have grown.

    Args:
        root: Where `proc` and `sys` lie.
    """
    return max([0, *(limit // _LEFT_PART - room for limit, room in _rooms(root))])


def _rooms(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of each control group of this process, and what it still allows: below 0 if the limit shrank."""
    for folder, names, limit in _groups(root):
        try:
            used = int((folder / names.used).read_text())
            yield limit, limit - used + _cache_bytes(folder, names)
        except FileNotFoundError:  # the group is removed meanwhile, or keeps no count
            continue


def _meminfo(root: Path, field: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    raise OSError(f"/proc/meminfo has no {field}")


def _groups(root: Path) -> Iterator[tuple[Path, _Names, int]]:
    """Yield the folders of this process's control groups that limit memory, up to the root, with their limits."""
    for folder, version in groups("memory", root):
        names = _V2 if version == 2 else _V1
        limits = [limit for limit in (_limit(folder / name) for name in names.limits) if limit is not None]
        if limits:
            yield folder, names, min(limits)


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:  # a group without the controller, or one that is removed meanwhile
        return None
    return None if text == "max" else int(text)


def _cache_bytes(folder: Path, names: _Names) -> int:
    fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(fields.get(name, 0)) for name in names.cache)
