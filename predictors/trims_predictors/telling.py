"""Errors of other people's code in words."""

from __future__ import annotations


def told(error: BaseException) -> str:
    """The class and message of an error; without the message if making that fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the class of an exception may be a user's, with a method that is broken
        return f"{type(error).__name__}, whose message cannot be made"
