"""A function that stands in the place of another one under its names, until it is put back.

Modules that were imported before may hold the original by value (`from torch import load`). References to it that its
known places do not explain have them looked for; where there are none, as in a program whose hook came first, no module
is looked at. Not covered: originals in closures, containers and classes of others.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

#: Attributes of a module, without code of its class.
_names_of: Callable[[object], dict[str, Any]] = vars(type(sys))["__dict__"].__get__
#: References to an original while `replace` runs: of its caller, the adapter, the parameter, and `sys.getrefcount`.
_OURS = 4 if sys.version_info >= (3, 11) else 5  # and of the call
#: Names that are compared by value at most: some milliseconds.
_MOST_NAMES = 30_000


def replace(
    places: Sequence[tuple[Any, str]],
    original: object,
    adapter: Callable[..., Any],
    *,
    method: bool = False,
    kept: int = 0,
) -> Callable[[], None]:
    """Put an adapter where the original stands. Return what puts the original back where the adapter still stands.

    Args:
        places: Objects, and their attributes that may be the original; others are left alone. If one is a module,
            further modules that hold the original by value are looked for.
        method: Whether a class hands the adapter its instance.
        kept: References of the framework's own to the original that are no module's.
    """
    taken = [(owner, name, name in vars(owner)) for owner, name in places if getattr(owner, name, None) is original]
    others = sys.getrefcount(original) - _OURS - len(taken) - kept
    if others > 0 and not any(isinstance(owner, type) for owner, _ in places):
        known = {id(owner) for owner, _, _ in taken}
        taken += [(module, name, True) for module, name in _holders(original, others, known)]
    for owner, name, _ in taken:
        setattr(owner, name, staticmethod(adapter) if isinstance(owner, type) and not method else adapter)

    def undo() -> None:
        for owner, name, is_own in taken:
            if getattr(owner, name, None) is not adapter:
                continue
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    return undo


def _holders(original: Any, most: int, known: set[int]) -> Iterator[tuple[ModuleType, str]]:
    """Yield modules that hold an object by value, and the names there.

    The object's own name is looked up everywhere, which is cheap; then all names: in the program, and in the modules
    that came last first.

    Args:
        most: References that are not explained yet; nothing is looked at once they are.
        known: Ids of modules that need no look.
    """
    found = [each for each in list(sys.modules.values()) if issubclass(type(each), type(sys))]
    modules = list({id(each): each for each in found}.values())
    own, wanted = getattr(original, "__name__", ""), {id(original)}
    for module in modules:
        if _names_of(module).get(own) is original and id(module) not in known:
            most -= 1
            yield module, own
    skipped = {*sys.stdlib_module_names, str(original.__module__).partition(".")[0]}
    modules.sort(key=lambda each: _names_of(each).get("__name__") == "__main__")
    left = _MOST_NAMES
    while modules and most > 0 and left > 0:
        module = modules.pop()
        names = _names_of(module)
        if str(names.get("__name__")).partition(".")[0] in skipped:
            continue
        left -= len(names)
        if not wanted.isdisjoint(map(id, names.values())):
            held = [name for name, value in list(names.items()) if value is original and name != own]
            most -= len(held)
            yield from ((module, name) for name in held)
