"""Adapters by the module whose import calls for them, and putting them in place and out of it.

Packages bring adapters of their own by the entry points `trims.loaders`: the name is the module, the value a function
that is given it and returns what undoes the adapter. They are looked up at the first import from outside of the
standard library: a millisecond for two hundred packages.
"""

from __future__ import annotations

import os
import sys

from trims_client.transparent.imports import ImportHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

#: Variable that turns the loaders off, whatever a program says: `TRIMS_TRANSPARENT=0`.
VARIABLE = "TRIMS_TRANSPARENT"
#: Variable that has a program report at its end, on standard error.
REPORT_VARIABLE = "TRIMS_TRANSPARENT_REPORT"
#: Modules of frameworks; the module of the same first name beside this one has the adapter.
FRAMEWORKS = ("torch", "numpy", "safetensors.numpy", "mxnet", "onnxruntime", "transformers.modeling_utils")
#: Entry points of other packages' adapters.
GROUP = "trims.loaders"
#: Module by which Python starts processes that go on with a program.
_CHILDREN = "multiprocessing.util"
_hooks = ImportHooks()
#: Calls that put each original back.
_undo: list[Callable[[], None]] = []
#: Adapters of other packages, by module; None before they were looked up.
_others: Mapping[str, str] | None = None


def names() -> frozenset[str]:
    """Return the modules whose import calls for an adapter."""
    return frozenset((*FRAMEWORKS, _CHILDREN, *_of_others()))


def install(*, report: bool = False) -> bool:
    """Put the adapters in place, each as soon as its framework is imported. Idempotent.

    Args:
        report: Have the program report at its end, as the variable does.

    Return False if the environment turns them off.
    """
    if os.environ.get(VARIABLE) == "0":
        return False
    if not _undo:
        _undo.append(_hooks.clear)
        for name in (*FRAMEWORKS, _CHILDREN):
            _hooks.add(name, _adapt)
        if _others is not None or not sys.modules.keys().isdisjoint(FRAMEWORKS):
            _hook_others()
        else:
            _hooks.foreign = _hook_others
    if report or os.environ.get(REPORT_VARIABLE, "") not in ("", "0"):
        from trims_client.transparent.outcomes import report_at_end

        report_at_end()
    return True


def uninstall() -> None:
    """Put the originals back, unless another library has patched an adapter since. Idempotent."""
    while _undo:
        _undo.pop()()


def _of_others() -> Mapping[str, str]:
    global _others  # noqa: PLW0603 - looked up once
    if _others is None:
        from trims_client.transparent.entry_points import entry_points

        _others = entry_points(GROUP)
    return _others


def _hook_others() -> None:
    for name in _of_others().keys() - {*FRAMEWORKS, _CHILDREN}:
        _hooks.add(name, _adapt)


def _adapt(module: ModuleType) -> None:
    from trims_client.transparent.outcomes import note_adapter

    name = module.__name__
    with note_adapter(name):
        _undo.append(_adapter(name)(module))


def _adapter(name: str) -> Callable[[ModuleType], Callable[[], None]]:
    from importlib import import_module

    if name in (*FRAMEWORKS, _CHILDREN):
        return import_module(f"{__package__}.{name.partition('.')[0]}").adapt  # type: ignore[no-any-return]
    home, _, function = _of_others()[name].partition(":")
    return getattr(import_module(home), function)  # type: ignore[no-any-return]
