"""Names of modules in memory that two processes share: one imports them, the other reads them whenever it likes.

The first eight bytes hold how far the names reach; each ends with a newline. Forks of the writer share the memory, too,
and may write over each other, so a reader takes no name on trust.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mmap import mmap
    from typing import Any

#: Bytes of the memory of one run: three times what the names of the largest frameworks take.
MEMORY_BYTES = 1 << 20
_HEAD = 8


def write_name(memory: mmap, name: str) -> None:
    """Add one name; what does not fit is left out."""
    data = name.encode("utf-8", "replace") + b"\n"
    begin = max(_HEAD, int.from_bytes(memory[:_HEAD], "little"))
    if begin + len(data) <= len(memory):
        memory[begin : begin + len(data)] = data
        memory[:_HEAD] = (begin + len(data)).to_bytes(_HEAD, "little")


def read_names(memory: mmap, begin: int = 0) -> tuple[list[str], int]:
    """Return the names from a place on, each once, and where they end.

    Args:
        memory: Shared with the writer.
        begin: What an earlier call returned; 0 for all.
    """
    end = min(int.from_bytes(memory[:_HEAD], "little"), len(memory))
    text = memory[max(_HEAD, begin) : end].decode("utf-8", "replace")
    return list(dict.fromkeys(name for name in text.split("\n") if name)), max(end, begin)


class Observer:
    """Finder that finds nothing and notes what is looked for.

    Args:
        memory: The names are written here.
    """

    def __init__(self, memory: mmap) -> None:
        self._memory = memory

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Note that a module is imported."""
        del path, target
        write_name(self._memory, name)
