"""Adapters by the module whose import calls for them, and putting them in place and out of it."""

from __future__ import annotations

import os

from trims_client.transparent.imports import ImportHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

#: Variable that turns the loaders off, whatever a program says: `TRIMS_TRANSPARENT=0`.
VARIABLE = "TRIMS_TRANSPARENT"
#: Variable that has a program report at its end, on standard error.
REPORT_VARIABLE = "TRIMS_TRANSPARENT_REPORT"
#: Frameworks; the module of the same name beside this one has the adapter.
_ADAPTED = ("torch", "numpy")
_hooks = ImportHooks()
#: Calls that put each original back.
_undo: list[Callable[[], None]] = []


def install() -> bool:
    """Put the adapters in place, each as soon as its framework is imported. Idempotent.

    Return False if the environment turns them off.
    """
    if os.environ.get(VARIABLE) == "0":
        return False
    if not _undo:
        _undo.append(_hooks.clear)
        for name in _ADAPTED:
            _hooks.add(name, _adapt)
        if os.environ.get(REPORT_VARIABLE, "") not in ("", "0"):
            from trims_client.transparent.outcomes import report_at_end

            report_at_end()
    return True


def uninstall() -> None:
    """Put the originals back, unless another library has patched an adapter since. Idempotent."""
    while _undo:
        _undo.pop()()


def _adapt(framework: ModuleType) -> None:
    from importlib import import_module

    _undo.append(import_module(f"{__package__}.{framework.__name__}").adapt(framework))
