"""Hooks that run once a module has been imported, without importing it (as PEP 369 meant them).

wrapt has the same, and is not in the environments of programs that `trims exec` starts: nothing of ours is.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Hook = Callable[[ModuleType], object]

#: Packages whose modules are not foreign.
_HOUSE = sys.stdlib_module_names | {"trims", "trims_client"}


class ImportHooks:
    """A finder that finds nothing itself: it has others find a module, and runs the module's hook behind its code."""

    def __init__(self) -> None:
        self._hooks: dict[str, Hook] = {}
        self._finding: set[tuple[str, int]] = set()
        #: Called once, before the first module that is not the standard library's is found.
        self.foreign: Callable[[], None] | None = None

    def add(self, name: str, hook: Hook) -> None:
        """Run a hook with the module of this name: now if it is imported, else as soon as it is."""
        module = sys.modules.get(name)
        if module is not None and not _is_being_imported(module):
            hook(module)
            return
        self._hooks[name] = hook
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def clear(self) -> None:
        """Forget all hooks."""
        self._hooks.clear()
        self.foreign = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if self.foreign is not None and name.partition(".")[0] not in _HOUSE:
            foreign, self.foreign = self.foreign, None
            foreign()
        asked = name, get_ident()
        if name not in self._hooks or asked in self._finding:
            return None
        self._finding.add(asked)
        try:
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self._hooks)  # type: ignore[assignment] # as one
                    return spec
        finally:
            self._finding.discard(asked)
        return None


class _Loader:
    """A module's own loader, with a hook behind it. The module does not keep it."""

    def __init__(self, loader: Any, hooks: dict[str, Hook]) -> None:
        self._loader = loader
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `importlib.abc.Loader`."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then the hook. One that was found only, as by `importlib.util.find_spec`, keeps it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if (hook := self._hooks.pop(module.__name__, None)) is not None:
            hook(module)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))
