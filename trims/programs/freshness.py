"""Files that a template was made of: whether they are what they were, and whether a program has its own of them."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_State = tuple[int, int, int]
#: Granularity of the times of files, in nanoseconds: one that is as young as a look at it may have changed since.
_COARSE_NS = 20_000_000


class Files:
    """Files and folders that a template depends on, as they were.

    Args:
        files: Those of its modules, and others whose change counts.
        folders: Folders in which a new name counts: those of installed packages.
        since_ns: Time at which the template began to read them, in nanoseconds since 1970.
    """

    def __init__(self, files: Iterable[str], folders: Iterable[str], since_ns: int) -> None:
        self._states = {path: _state(path) for path in dict.fromkeys([*files, *folders])}
        #: File that may have changed while it was read; None if there is none.
        now_ns = time.time_ns()
        changed = (path for path, state in self._states.items() if since_ns - _COARSE_NS < state[2] <= now_ns)
        self.torn = next(changed, None)

    def changed(self) -> str | None:
        """Return the path of a file that is not what it was; None if all are."""
        for path, state in self._states.items():
            if _state(path) != state:
                return path
        return None


def _state(path: str) -> _State:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def site_files(prefix: str, folders: Iterable[str]) -> list[str]:
    """Return the files that decide what an interpreter finds: `pyvenv.cfg` and all `.pth` files.

    Args:
        prefix: Of the environment.
        folders: Of `sys.path`.
    """
    found = [os.path.join(prefix, "pyvenv.cfg")]
    for folder in folders:
        with contextlib.suppress(OSError):
            found += [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".pth")]
    return found


def shadow(folder: str, modules: Mapping[str, str], missing: Iterable[str], suffixes: Sequence[str]) -> str | None:
    """Return the name in a folder that a program would have imported in the place of a template's module.

    Args:
        folder: First on the program's `sys.path`.
        modules: Modules of the top level that the template has found on its path, and their files; empty text for a
            package that is spread over folders.
        missing: Modules that it has looked for in vain.
        suffixes: Endings of the files that its Python imports modules from.
    """
    wanted = frozenset(missing)
    try:
        entries = os.scandir(folder)
    except OSError:
        return None
    with entries:
        for entry in entries:
            stem, dot, _ = entry.name.partition(".")
            if stem not in modules and stem not in wanted:
                continue
            if dot and entry.name[len(stem) :] in suffixes and os.path.dirname(modules.get(stem, "")) != folder:
                return entry.path
            if not dot and entry.is_dir() and _is_found(entry.path, modules.get(stem, ""), suffixes):
                return entry.path
    return None


def _is_found(folder: str, file: str, suffixes: Sequence[str]) -> bool:
    """Return whether a folder is imported as a package in the place of the one with this file."""
    if file.startswith(f"{folder}/"):
        return False
    return not file or any(os.path.exists(os.path.join(folder, f"__init__{suffix}")) for suffix in suffixes)
