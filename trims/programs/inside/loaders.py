"""Transparent loaders (`trims_client.transparent`) of a template, in place before its forks, which share the work.

Looking through the modules of a fork would copy their memory. A program that imports no framework sees nothing of the
loaders. One whose environment has trims runs its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Loaders:
    """Adapters of a template's forks. A finder that finds nothing: it hears that a framework is about to be imported.

    Args:
        folders: Our packages, which the program's interpreter does not find by itself; none for no loaders.
        folder: What the program's `sys.path` begins with.
    """

    def __init__(self, folders: Mapping[str, str], folder: str) -> None:
        self._names: frozenset[str] = frozenset()
        self._modules: dict[str, Any] = {}
        self._report = False
        self._undo: Callable[[], None] = lambda: None
        if not folders or any(name in sys.modules or _has(folder, name) for name in folders):
            return  # modules of these names are the program's own
        before = set(sys.modules)
        with contextlib.suppress(Exception):  # else the program's frameworks load alone
            self._prepare(folders)
        for name in sys.modules.keys() - before:
            module = sys.modules.pop(name)
            if name.partition(".")[0] in self._modules:
                self._modules[name] = module

    def _prepare(self, folders: Mapping[str, str]) -> None:
        own = find_spec("trims_client")
        for name, home in folders.items():
            spec = spec_from_file_location(name, f"{home}/__init__.py", submodule_search_locations=[home])
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        from trims_client.transparent import adapters

        names = adapters.names()
        places = {os.path.realpath(each) for each in (own and own.origin, sys.modules["trims_client"].__file__) if each}
        if len(places) == 1:  # else the program's environment has its own
            self._modules.update((name, sys.modules[name]) for name in folders)
            if not names.isdisjoint(sys.modules):
                self._undo = adapters.uninstall
                adapters.install()
        self._names = names

    def begin(self, *, wanted: bool, report: bool) -> None:
        """Leave the adapters in place in a fork, or have them follow its first framework; or take them away.

        Args:
            report: Have the program report at its end.
        """
        self._report = report
        if not wanted or os.environ.get("TRIMS_TRANSPARENT") == "0":
            self._undo()
        elif not self._names.isdisjoint(sys.modules):
            self._install()
        elif self._names:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        if name not in self._names:
            return None
        sys.meta_path.remove(self)
        self._install()
        return sys.meta_path[0].find_spec(name, path, target)  # that of the adapters

    def _install(self) -> None:
        for name, module in self._modules.items():
            sys.modules.setdefault(name, module)
        try:
            from trims_client.transparent import install

            install(report=self._report)
        except Exception as error:  # noqa: BLE001 - another release in the program's environment may do anything
            if self._report:
                sys.stderr.write(f"trims exec: the frameworks load alone: {type(error).__name__}: {error}\n")


def _has(folder: str, name: str) -> bool:
    return bool(folder) and any(os.path.exists(f"{folder}/{name}{end}") for end in ("/__init__.py", ".py"))
