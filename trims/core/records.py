"""Records that are made for every open: immutable to the type checker, and cheap to make.

A frozen dataclass sets each field by a call of `object.__setattr__`: an open makes five records of forty fields in all,
and freezing them took a quarter of the daemon's time for it. mypy refuses to assign to a field of a record; the
interpreter would let it pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Callable[..., object]], Callable[..., object]]:
        """Do nothing at run time."""
        return lambda decorator: decorator


_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True)
def record(cls: type[_Class]) -> type[_Class]:
    """Make a class a record."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event_record(cls: type[_Class]) -> type[_Class]:
    """Make a class a record whose fields are named when it is made."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=True)(cls)
