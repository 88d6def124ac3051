"""Fields of a message, checked: every error names the field, and what it must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError

if TYPE_CHECKING:
    from trims.wire.frames import Message

_MAX_NAME = 4096


def only(message: Message, *fields: str) -> None:
    """Raise BadMessageError if there is any other field beside `op`."""
    for name in message:
        if name != "op" and name not in fields:
            raise BadMessageError(f"unknown field {name!r} in {message['op']!r}"[:200])


def number(message: Message, name: str) -> int:
    """Return a whole number that every JSON reader keeps exactly. Raises BadMessageError."""
    value = message.get(name)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise BadMessageError(f"{name!r} must be a whole number from 0 to 2^53 - 1, not {value!r}"[:200])
    return value


def text(message: Message, name: str) -> str | None:
    """Text of bounded length, or None if there is none. Raises BadMessageError."""
    value = message.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        raise BadMessageError(f"{name!r} must be text of at most {_MAX_NAME} characters"[:200])
    if "\0" in value:
        raise BadMessageError(f"{name!r} must be text without NUL characters")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadMessageError(f"{name!r} holds half of a surrogate pair, which is no text")
    return value
