"""Files that a template was made of: whether they are what they were, and whether a program has its own of them."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_State = tuple[int, ...]
#: Granularity of the times of files, in nanoseconds: one that is as young as a look at it may have changed since.
_COARSE_NS = 20_000_000
_ABSENT: _State = ()
#: Behind the name of a mapped file that is another one by now.
_DELETED = " (deleted)"


class Files:
    """Files and folders that a template depends on, as they were.

    Args:
        files: Files that were read: each counts by place, length and times, that of its last change of any kind too.
        listed: Folders whose names were read.
        looked: Paths that were only looked at: folders among them count by being there.
        since_ns: Time at which the template began to read them, in nanoseconds since 1970.
    """

    def __init__(self, files: Iterable[str], listed: Iterable[str], looked: Iterable[str], since_ns: int) -> None:
        self._files = {path: _state(path) for path in dict.fromkeys(files)}
        self._looked = {path: _look(path) for path in dict.fromkeys(looked) if path not in self._files}
        self._folders = {path: (_state(path), _names(path)) for path in dict.fromkeys(listed)}
        #: File that may have changed while it was read; None if there is none.
        young = range(since_ns - _COARSE_NS + 1, time.time_ns() + 1)
        self.torn = next(
            (path for path, state in self._files.items()
             if path.endswith(_DELETED) or any(at_ns in young for at_ns in state[3:])),
            None,
        )  # fmt: skip

    def changed(self) -> str | None:
        """Return the path of a file that is not what it was, or of a folder with other names; None if all are."""
        for path, state in self._files.items():
            if _state(path) != state:
                return path
        for path, state in self._looked.items():
            if _look(path) != state:
                return path
        for path, (state, names) in self._folders.items():
            now = _state(path)
            if now != state:
                if _names(path) != names:
                    return path
                self._folders[path] = (now, names)
        return None


def _state(path: str) -> _State:
    try:
        status = os.stat(path)
    except OSError:
        return _ABSENT
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _look(path: str) -> _State:
    """Return the state of a path that was looked at: of what lies there, and of what a link leads to."""
    try:
        there = os.lstat(path)
    except OSError:
        return _ABSENT
    own: _State = (there.st_dev, there.st_ino, stat.S_IFMT(there.st_mode))
    if not stat.S_ISLNK(there.st_mode):
        status = there
    else:
        own = (*own, there.st_mtime_ns, there.st_ctime_ns)  # one made again may get the old number
        try:
            status = os.stat(path)
        except OSError:
            return own
    if stat.S_ISREG(status.st_mode):
        return (*own, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return (*own, status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode))


def _names(folder: str) -> frozenset[str] | None:
    """Return the names in a folder, but for that of compiled code, which an import may put there; None without it."""
    try:
        return frozenset(os.listdir(folder)) - {"__pycache__"}
    except OSError:
        return None


def site_files(prefix: str, folders: Iterable[str]) -> list[str]:
    """Return the files that decide what an interpreter finds: `pyvenv.cfg` and all `.pth` files.

    Args:
        folders: Folders of `sys.path`.
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
