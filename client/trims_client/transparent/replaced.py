"""A function that stands in the place of another one under its names, until it is put back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def replace(
    places: Sequence[tuple[Any, str]], original: object, adapter: Callable[..., Any], *, method: bool = False
) -> Callable[[], None]:
    """Put an adapter where the original stands. Return what puts the original back where the adapter still stands.

    Args:
        places: Objects, and their attributes that may be the original; others are left alone.
        method: Whether a class hands the adapter its instance.
    """
    taken = [(owner, name, name in vars(owner)) for owner, name in places if getattr(owner, name, None) is original]
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
