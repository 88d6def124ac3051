"""Imports of a template: only what the program imports as it would, and nothing that a fork cannot have.

What an import does beside making modules is seen, not known beforehand: threads that outlast two forks, processes, open
files, output, and what it reads that differs from one run to the next.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import time
from importlib.machinery import PathFinder, all_suffixes
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError
from trims.programs.identity import initial_environment
from trims.programs.inside.observed import MARKS, PLACE, VARIABLE, details, is_within
from trims.programs.inside.watching import Reads, mapped_files, started_from
from trims.templates import fork_safety
from trims.templates.fork_loop import freeze

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.wire.frames import Message

#: Modules that are the program's, the interpreter's or ours. The tests of the standard library are a program.
_NEVER = ("trims", "__main__", "sitecustomize", "usercustomize", "test")
#: Modules that change others: a program imports what follows with their changes.
_PATCHERS = ("gevent.monkey", "eventlet.patcher")
#: Beginnings of variables that libraries may read when they are loaded: of the C library, of those that compute in
#: parallel, and of frameworks.
_NATIVE = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "MALLOC_", "GLIBC_", "LD_",
    "MXNET_", "DMLC_", "TORCH_", "PYTORCH_", "TF_", "XLA_", "ORT_", "TBB_", "LC_", "LANG", "TZ",
)  # fmt: skip


class Importer:
    """Importer of one template.

    Args:
        before: Names of the modules that every interpreter has when a program begins.
        known: Descriptors of sockets and of the lifeline.
        output: File that standard output and error go to.
        progress: File for the index of the module that is being imported.

    Attributes:
        reseeders: What seeds generators of plug-ins in each fork.
        restarting: Whether there are threads that a library ends before each fork and starts again after it.
        changed: Variables that imports have set; None for those that they have taken away.
    """

    def __init__(self, before: set[str], known: set[int], output: int, progress: int) -> None:
        self._before = before
        self._known = known
        self._output = output
        self._progress = progress
        #: Why the template may not be forked, and the modules of which one is the culprit.
        self._unfit, self._culprits, self._last = "", list[str](), ""
        #: Modules that our own code has imported.
        self._ours: set[str] = set()
        self._learned: set[str] = set()
        self._missing: list[str] = []
        #: Modules that the last import has looked for.
        self._sought: set[str] = set()
        self._arguments = _Arguments()
        #: Module that has changed others, behind which nothing is imported.
        self._patched = ""
        self._descriptors = _count("fd")
        self._environment = initial_environment()
        self._set = SetVariables()
        self._reads: Reads | None = None
        self.reseeders: list[Any] = []
        self.restarting = False
        self.changed: dict[str, str | None] = {}

    def run(self, message: Message) -> Message:
        """Import what a message names. Return what was imported, or why this process is unfit to be forked."""
        notes: list[str] = message["modules"]
        failed: dict[str, str] = {}
        roots = _roots()
        names = [name for name in notes if name[0] not in MARKS]
        allowed = self._allowed(names, roots, details(notes, PLACE), message["folder"])
        self._ours = set(sys.modules) - self._before
        noted = {*sys.modules, *(name for name in names if allowed[name.partition(".")[0]])}
        reads = self._reads = Reads(frozenset(message["unread"]), self._set.names, roots)
        arguments, sys.argv = sys.argv, self._arguments
        began_s = time.perf_counter()
        before, behind = _Before(self._look), _Missing(self._missing)
        sys.meta_path.insert(0, before)
        sys.meta_path.append(behind)
        for index, note in enumerate(notes):
            os.pwrite(self._progress, index.to_bytes(8, "little"), 0)
            if note[0] in MARKS:
                self._note_set(note, roots)
            elif self._is_wanted(note, message, allowed, noted, failed):
                self._sought.clear()
                self._import_one(note, failed)
                others = sorted((sys.modules.keys() & self._sought) - noted)
                if self._unfit:
                    return {"op": "unfit", "modules": [*self._culprits, note], "why": self._unfit}
                if others:
                    why = f"it imports what the program imports in another way: {', '.join(others[:5])}"
                    return {"op": "unfit", "modules": [note], "why": why, "others": others}
        seconds = time.perf_counter() - began_s
        for finder in (before, behind):  # a module may have put one of its own before or behind ours
            sys.meta_path.remove(finder)
        reads.end()
        sys.argv = arguments
        modules: list[Any] = list(sys.modules.values())
        for module in modules:
            if getattr(module, "argv", None) is self._arguments:
                module.argv = arguments
        os.chdir("/")
        self._learned = {name for name in names if allowed[name.partition(".")[0]]}
        return {**self._imported(failed, roots, allowed, reads), "reads": sorted(reads.names), "seconds": seconds}

    def _allowed(
        self, names: list[str], roots: tuple[str, ...], places: dict[str, str], folder: str
    ) -> dict[str, bool]:
        """Return which modules of the top level are installed ones, and were found there by the program."""
        tops = dict.fromkeys(name.partition(".")[0] for name in names)
        return {top: _is_installed(top, roots, places.get(top)) and not _is_in(top, folder) for top in tops}

    def _is_wanted(
        self, name: str, message: Message, allowed: dict[str, bool], noted: set[str], failed: dict[str, str]
    ) -> bool:
        """Return whether a noted module is to be imported; if it is not, why may be added to those that failed."""
        top, parent = name.partition(".")[0], name.rpartition(".")[0]
        if not allowed[top] or name == message["own"] or name.rpartition(".")[2] == "__main__":
            return False
        if (parent and parent not in noted) or is_within(name, message["banned"]):
            return False
        self._patched = self._patched or (name if name in _PATCHERS else "")
        if self._patched and name not in sys.modules:
            failed[top] = f"{self._patched} changes modules of the standard library before it is imported"
            return False
        if self._set.native and top not in sys.stdlib_module_names and top not in sys.modules:
            failed[top] = f"the program sets {self._set.native} before, which libraries read when they are loaded"
            return False
        return True

    def _note_set(self, note: str, roots: tuple[str, ...]) -> None:
        """Note a variable that the program itself sets: what is imported from then on may read it."""
        name, _, file = note.partition("\t")
        if note[0] == VARIABLE and not os.path.realpath(file).startswith(roots):
            self._set.add(name[1:])

    def _import_one(self, name: str, failed: dict[str, str]) -> None:
        self._last = name
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # else it was not there for the program either
                failed[name] = f"{type(error).__name__}: {error}"[:200]
        except BaseException as error:  # noqa: BLE001 - whatever one does, the others are wanted still
            failed[name] = f"{type(error).__name__}: {error}"[:200]
        self._unfit = self._side_effect() or ""
        if not self._unfit:
            self._culprits.clear()  # a module may have had a file open only while it imported another
        elif not self._culprits:
            self._blame()

    def _look(self, name: str) -> None:
        """Look whether an import has made the template unfit, each time that the next one begins."""
        if not self._culprits and self._side_effect():
            self._blame()
        self._last = name
        self._sought.add(name)

    def _blame(self) -> None:
        """Note the culprits: the module that was imported last, and those that are being imported."""
        begun = [each for each, module in list(sys.modules.items()) if _is_begun(module)]
        self._culprits = [self._last, *begun]

    def _side_effect(self) -> str | None:  # noqa: PLR0911 - one for each kind
        """Return why the template may not be forked now; None if it may be."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        if self._arguments.read:
            return "it reads the command line when it is imported"
        if self._reads is not None and self._reads.given:
            return f"it reads {self._reads.given}, which the program itself sets before it imports it"
        if os.fstat(self._output).st_size:
            return f"it prints when it is imported: {os.pread(self._output, 80, 0).decode(errors='replace').strip()!r}"
        if _children():
            return "it starts processes"
        if _count("fd") != self._descriptors:
            why = fork_safety.fork_blocker(self._known) if _count("task") == 1 else None
            return why or f"it keeps a file open: {', '.join(self._new_files())}"
        if _count("task") != 1:
            return self._try_fork()
        if sys.gettrace() is not None or sys.getprofile() is not None:
            return "it traces what is run"
        return None

    def _new_files(self) -> list[str]:
        found = []
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2 and int(fd) not in {*self._known, self._output, self._progress}:
                with contextlib.suppress(FileNotFoundError):
                    found.append(os.readlink(f"/proc/self/fd/{fd}"))
        return found

    def _try_fork(self) -> str | None:
        why, self.restarting = fork_safety.try_fork()
        return why

    def _imported(
        self, failed: dict[str, str], roots: tuple[str, ...], allowed: dict[str, bool], reads: Reads
    ) -> Message:
        try:
            self.reseeders = freeze()
        except NotSupportedError as error:
            return {"op": "unfit", "modules": [], "why": str(error)}
        gc.disable()
        for name in self._ours_alone():
            sys.modules.pop(name, None)
        if why := self._try_fork():
            return {"op": "unfit", "modules": [], "why": why}
        now = {name: os.environ.get(name) for name in {*os.environ, *self._environment}}
        self.changed = {name: value for name, value in now.items() if value != self._environment.get(name)}
        loaded = {name: module for name, module in list(sys.modules.items()) if name not in self._before}
        modules = [*loaded.values(), *(module for name, module in list(sys.modules.items()) if name in self._before)]
        files = {file for module in modules if isinstance(file := getattr(module, "__file__", None), str)}
        found = {file for file in files if os.path.isabs(file) and os.path.exists(file)}
        archives, wanted = started_from()
        # A package without a file has folders that add up.
        tops = {
            name: getattr(module, "__file__", None) or ""
            for name, module in loaded.items()
            if "." not in name and _on_path(module)
        }
        return {
            "op": "imported",
            "failed": failed,
            "count": len(loaded),
            "files": sorted({*archives, *reads.opened, *mapped_files(), *found}),
            "listed": sorted(reads.listed),
            "looked": sorted(reads.looked | wanted),
            "tops": tops,
            "missing": sorted(set(self._missing)),
            "sites": [path for path in sys.path if f"{os.path.realpath(path)}/" in roots],
            "paths": [
                path for path in sys.path if os.path.isdir(path) and not f"{os.path.realpath(path)}/".startswith(roots)
            ],
            "suffixes": all_suffixes(),
            "own": sorted(top for top, installed in allowed.items() if not installed),
            "prefix": sys.prefix,
        }

    def _ours_alone(self) -> list[str]:
        """Return the modules that our code has imported and the program does not, ours among them."""
        ours = self._ours | {name for name in sys.modules if name.partition(".")[0] == "trims"}
        alone = ours - self._learned
        return [name for name in alone if is_imported(name) or name.rpartition(".")[0] in alone]


def is_imported(name: str) -> bool:
    """Return whether a module was imported by its name; else its package has put it there (`importlib._bootstrap`)."""
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "name", None) == name


def _is_begun(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Before:
    """First finder: calls a function before each import."""

    def __init__(self, called: Callable[[str], None]) -> None:
        self._called = called

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Call the function with the name of the module."""
        del path, target
        self._called(name)


class SetVariables:
    """Variables that the program itself sets before it imports something.

    Attributes:
        names: All of them.
        native: One that libraries may read when they are loaded, which cannot be seen; empty for none.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.native = ""

    def add(self, name: str) -> None:
        """Add one."""
        self.names.add(name)
        if name.startswith(_NATIVE):
            self.native = self.native or name


class _Arguments(list[str]):
    """`sys.argv` of a template, which is no program's: notes whether something reads it.

    Attributes:
        read: Whether something has.
    """

    read = False


def _noting_list(name: str) -> Any:
    def noted(self: _Arguments, *given: Any) -> Any:
        self.read = True
        return getattr(list, name)(self, *given)

    return noted


for _name in ("__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__add__", "__repr__", "index", "copy"):
    setattr(_Arguments, _name, _noting_list(_name))


class _Missing:
    """Last finder: notes which modules are looked for in vain. One of the program's own would have been found."""

    def __init__(self, missing: list[str]) -> None:
        self._missing = missing

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Note a module of the top level that none has found."""
        del target
        if path is None:
            self._missing.append(name)


def _roots() -> tuple[str, ...]:
    """Return the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    found = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    if "site" in sys.modules and not sys.flags.no_site:
        found += site.getsitepackages()
        if site.ENABLE_USER_SITE:
            found.append(site.getusersitepackages())
    return tuple(f"{os.path.realpath(folder)}/" for folder in found)


def _is_installed(name: str, roots: tuple[str, ...], place: str | None) -> bool:
    """Return whether a module of the top level is the standard library's or an installed package's.

    Args:
        roots: Folders of those.
        place: Where the program has found it, which may be elsewhere; None if that is unknown.
    """
    if name in _NEVER:
        return False
    try:
        spec = sys.modules[name].__spec__ if name in sys.modules else importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None or place not in (None, spec.origin or ""):
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    return bool(places) and all(f"{os.path.realpath(place)}/".startswith(roots) for place in places)


def _on_path(module: Any) -> bool:
    """Return whether a module was found on `sys.path`, where a program's own of that name would have come first."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin not in ("built-in", "frozen")


def _is_in(name: str, folder: str) -> bool:
    """Return whether a module of the top level is the program's own, whatever others there are."""
    try:
        spec = PathFinder.find_spec(name, [folder])
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _count(what: str) -> int:
    return len(os.listdir(f"/proc/self/{what}"))


def _children() -> bool:
    """Return whether this process has children; each kernel but the smallest knows it."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return bool(file.read())
    except FileNotFoundError:
        return False
