"""Memory that processes hold, from /proc/PID/smaps: resident, proportional and private bytes of chosen mappings."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of memory.

    Attributes:
        rss: Resident.
        pss: Proportional.
        private: Bytes of this process alone: what its end would give back.
        written: Written by this process, so copied if the mapping is copy-on-write.
    """

    rss: int = 0
    pss: int = 0
    private: int = 0
    written: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(
            self.rss + other.rss,
            self.pss + other.pss,
            self.private + other.private,
            self.written + other.written,
        )


def total(held: Iterable[Held]) -> Held:
    """The sum."""
    return sum(held, Held())


def of_weights(pid: int | str, segment: str) -> Held:
    """Return the memory that a process holds of a replica: all its mappings of the segment of this name."""
    return total(held for path, held in mappings(pid) if segment in path)


def of_process(pid: int | str = "self") -> Held:
    """Everything a process holds, code and libraries included."""
    return total(held for _, held in mappings(pid))


def below(pid: int) -> list[int]:
    """Return all processes that a process has started, and those that they have started, as far as they still run."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, task.read_text().split()):
                found += [child, *below(child)]
    return found


def mappings(pid: int | str) -> Iterator[tuple[str, Held]]:
    """Every mapping of a process: its path, empty for anonymous memory, and what is held of it."""
    path, fields = "", {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if first.endswith(":"):
            fields[first] = rest
            continue
        if fields:
            yield path, _held(fields)
        parts = line.split(maxsplit=5)
        path, fields = parts[5] if len(parts) > 5 else "", {}
    if fields:
        yield path, _held(fields)


def _held(fields: dict[str, str]) -> Held:
    def read(name: str) -> int:
        return int(fields.get(name, "0").split()[0]) * 1024

    dirty = read("Private_Dirty:")
    return Held(read("Rss:"), read("Pss:"), read("Private_Clean:") + dirty, min(dirty, read("Anonymous:")))
