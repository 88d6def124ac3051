"""Notes of a program's imports, in memory that two processes share: one imports, the other reads whenever it likes.

Each note is a line: the name of a module, when it is looked for; `@NAME` and where a module of the top level was found;
`!NAME` and the file of code that has set an environment variable. The first eight bytes hold how far the notes reach.
Forks of the writer share the memory, too, and may write over each other, so a reader takes no note on trust.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from mmap import mmap
    from typing import Any

#: Marks of the notes that are no names of modules.
MARKS = PLACE, VARIABLE = "@", "!"
#: Bytes of the memory of one run: three times what the names of the largest frameworks take.
MEMORY_BYTES = 1 << 20
_HEAD = 8
#: Function of the import system that looks for a module in order to import it.
_IMPORTS = "_find_and_load_unlocked"


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


def with_detail(mark: str, name: str, detail: str) -> str:
    """Return the note of a variable or a place, as one line."""
    return f"{mark}{name}\t{detail}".replace("\n", " ")


def details(notes: Iterable[str], mark: str) -> dict[str, str]:
    """Return name -> detail of the notes with a mark."""
    return {
        name[1:]: detail for name, tab, detail in (each.partition("\t") for each in notes) if tab and name[0] == mark
    }


def is_within(name: str, packages: Iterable[str]) -> bool:
    """Return whether a module is one of the packages, or lies in one."""
    return any(name == each or name.startswith(f"{each}.") for each in packages)


class Observer:
    """Finder that notes what is looked for, and where a module of the top level is found.

    Args:
        memory: The notes are written here.
    """

    def __init__(self, memory: mmap) -> None:
        self._memory = memory

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Note that a module is imported, and return what the finders behind this one find."""
        asked = sys._getframe(1).f_back
        if asked is None or asked.f_code.co_name != _IMPORTS:
            return None  # whether there is such a module is asked, and none is imported
        write_name(self._memory, name)
        if path is not None:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                write_name(self._memory, with_detail(PLACE, name, str(spec.origin or "")))
                return spec
        return None

    def hear(self, event: str, what: Any) -> None:
        """Note that code sets an environment variable; a hook for `sys.addaudithook`."""
        if event not in ("os.putenv", "os.unsetenv"):
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith("<frozen "):
            frame = frame.f_back
        name = what[0].decode("utf-8", "replace") if isinstance(what[0], bytes) else str(what[0])
        write_name(self._memory, with_detail(VARIABLE, name, frame.f_code.co_filename))
