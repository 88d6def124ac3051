"""`NamedTuple` without `typing`, whose import is a fifth of what a client's process needs to start."""

from __future__ import annotations

__all__ = ["NamedTuple"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    class _Named(type):
        """Makes a named tuple of the fields that a class annotates, with the class's methods and defaults."""

        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, object]) -> type:  # noqa: ARG004
            fields = members["__annotations__"]
            defaults = [members.pop(field) for field in fields if field in members]
            made = namedtuple(name, fields, defaults=defaults, module=members["__module__"])  # noqa: PYI024
            for member, value in members.items():
                setattr(made, member, value)
            return made

    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})
