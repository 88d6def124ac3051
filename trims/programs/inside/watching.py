"""Reads of a template's imports: files, names in folders, variables and the working folder.

What an import has read decides what it has made, so a template serves only where all of that is as it was. Files and
folders are seen by an audit hook and by wrappers of `os.stat` and its like, libraries in the memory map. Not seen:
files that native code opens and closes by itself, and those that were read before the hook (by `sitecustomize`).
"""

from __future__ import annotations

import os
import site
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Beginnings of paths of which nothing is watched: each process has its own of what is there.
_MADE = ("/proc/", "/sys/", "/dev/")
_LISTS = ("os.listdir", "os.scandir")
_LOOKS = ("stat", "lstat", "access", "readlink")
#: Audit events of other calls that read what belongs to a path, which is their first argument.
_OTHERS = ("os.getxattr", "os.listxattr")
_SQLITE, _SQLITE_LOG = "sqlite3.connect", "-wal"
_CUSTOM = ("sitecustomize", "usercustomize")


class Reads:
    """Notes what is read, until its end.

    Args:
        unread: Names of variables that no import should read.
        given: Names of those that the program itself sets.
        roots: Folders of installed packages, with `/` at their ends.

    Attributes:
        names: Variables of `unread` that were read by name; empty text for the working folder. Going through all
            variables and fetching each value is no reading of one.
        given: One of `given` that was read; empty text for none.
        opened: Files that were opened for reading, and no import has opened for writing.
        listed: Folders whose names were read.
        looked: Paths that were looked at.
    """

    def __init__(self, unread: frozenset[str], given: set[str], roots: tuple[str, ...]) -> None:
        self.names: set[str] = set()
        self.given = ""
        self.opened: set[str] = set()
        self.listed: set[str] = set()
        self.looked: set[str] = set()
        self._written: set[str] = set()
        self._unread, self._set, self._roots = unread, given, roots
        self._iterations: list[_Iteration] = []
        self._kept = {name: getattr(os, name) for name in ("getcwd", "getcwdb", "open", *_LOOKS)}
        self._on = True
        reads = self

        class Noting(os._Environ):  # type: ignore[type-arg]
            def __getitem__(self, name: str) -> str:
                reads._note_variable(name)
                found: str = super().__getitem__(name)
                return found

            def __iter__(self) -> Iterator[str]:
                iteration = _Iteration()
                reads._iterations.append(iteration)
                try:
                    for name in super().__iter__():
                        iteration.current = name
                        yield name
                        iteration.go_on()
                finally:
                    reads._iterations.remove(iteration)
                    reads.names |= set() if iteration.fetches_all else iteration.fetched & unread

        os.environ.__class__ = Noting
        for name in ("getcwd", "getcwdb"):
            setattr(os, name, self._noting_folder(self._kept[name]))
        for name in ("open", *_LOOKS):
            setattr(os, name, self._noting_path(name, self._kept[name]))
        sys.addaudithook(self._hear)

    def end(self) -> None:
        """Note nothing any more. Take out of `opened` what an import has written itself."""
        self._on = False
        os.environ.__class__ = os._Environ
        for name, function in self._kept.items():
            setattr(os, name, function)
        self.opened -= self._written
        self.looked -= self.opened | self._written

    def _note_variable(self, name: str) -> None:
        if name in self._set:
            self.given = self.given or name
        for iteration in self._iterations:
            if iteration.current == name:
                iteration.fetched.add(name)
                return
        if name in self._unread:
            self.names.add(name)

    def _noting_folder(self, function: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            if self._on:
                self.names.add("")
            return function()

        return noted

    def _noting_path(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of `os` that notes the path it is called with; an open is seen by its event, too."""

        def noted(path: Any, *more: Any, **options: Any) -> Any:
            folder = options.get("dir_fd")
            if self._on and (name != "open" or folder is not None):
                self._note(path, self.opened if name == "open" else self.looked, folder=folder)
            return function(path, *more, **options)

        for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if function in supported:
                supported.add(noted)
        return noted

    def _hear(self, event: str, what: tuple[Any, ...]) -> None:
        """Note files that are opened and folders that are listed; a hook for `sys.addaudithook`."""
        if not self._on:
            return
        if event == "open":
            path, _, flags = what
            is_read = flags & os.O_ACCMODE == os.O_RDONLY
            if not (isinstance(path, str) and path.endswith(".pyc") and "__pycache__" in path):  # its source counts
                self._note(path, self.opened if is_read else self._written)
        elif event in _OTHERS:
            self._note(what[0], self.looked)
        elif event == _SQLITE and isinstance(what[0], (str, bytes)):
            self._note(what[0], self.opened)
            self._note(os.fsdecode(what[0]) + _SQLITE_LOG, self.looked)
        elif event in _LISTS:
            by_import = sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
            self._note("." if what[0] is None else what[0], self.listed, within=self._roots if by_import else None)

    def _note(
        self, path: Any, noted: set[str], *, within: tuple[str, ...] | None = None, folder: int | None = None
    ) -> None:
        """Note a path.

        Args:
            path: Path as it was given; a relative one is the working folder's, which counts then, too.
            noted: Where to.
            within: Folders of which one must have it; None for any.
            folder: Descriptor of the folder that a relative path is in; None for the working folder.
        """
        try:
            if isinstance(path, int):
                return
            text = os.fsdecode(path)
            if not text.startswith("/"):
                if within is not None:
                    return
                if folder is None:
                    self.names.add("")
                    base = self._kept["getcwd"]()
                else:
                    base = self._kept["readlink"](f"/proc/self/fd/{folder}")
                text = os.path.join(base, text)
            if text.startswith(_MADE) or (within is not None and not f"{os.path.normpath(text)}/".startswith(within)):
                return
            noted.add(os.path.normpath(text))
        except (TypeError, ValueError, OSError):
            return  # no path: the call itself fails


class _Iteration:
    """One walk through the variables: which values were fetched on the way."""

    def __init__(self) -> None:
        self.current = ""
        self.fetched: set[str] = set()
        self.fetches_all = True

    def go_on(self) -> None:
        """Note that the next variable is asked for."""
        self.fetches_all = self.fetches_all and self.current in self.fetched


def mapped_files() -> set[str]:
    """Return the files of which this process has parts in its memory: libraries, and the interpreter.

    One that was replaced since has ` (deleted)` behind its name.
    """
    with open("/proc/self/maps", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").split(maxsplit=5)[-1] for line in file if "/" in line}
    return {path for path in paths if path.startswith("/") and not path.startswith((*_MADE, "/memfd:"))}


def started_from() -> tuple[set[str], set[str]]:
    """Return what an interpreter reads when it starts, beside `.pth` files.

    Returns:
        Files that are there: archives on `sys.path`. And paths that count if they appear: `sitecustomize` and
        `usercustomize`, and the user's folder of packages.
    """
    archives = {path for path in sys.path if os.path.isfile(path)}
    if sys.flags.no_site:
        return archives, set()
    names = _CUSTOM if site.ENABLE_USER_SITE else _CUSTOM[:1]
    ends = [end for name in names for end in (f"{name}.py", f"{name}/__init__.py")]
    wanted = {os.path.join(path, end) for path in sys.path if path and path not in archives for end in ends}
    if site.ENABLE_USER_SITE:
        wanted.add(site.getusersitepackages())
    return archives, wanted
