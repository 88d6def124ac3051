"""Errors of other people's code in words."""

from __future__ import annotations

import os
import traceback

#: Characters of an error's text that are reported. Some texts hold a whole array.
_MOST_LETTERS = 8000
#: Frames of these files say nothing of a user's code.
_OURS = (os.path.dirname(os.path.abspath(__file__)), "<frozen importlib")


def traceback_of(error: BaseException) -> str:
    """The story of an error of a user's code, from the first frame of that code on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    return "".join(map(_short, traceback.TracebackException(type(error), error, frame).format()))


def format_error(error: BaseException) -> str:
    """The class and message of an error; without the message if making that fails."""
    try:
        words = _short(str(error))
        return f"{type(error).__name__}: {words}" if words else type(error).__name__
    except Exception:  # noqa: BLE001 - the class of an exception may be a user's, with a method that is broken
        return f"{type(error).__name__}, whose message cannot be made"


def _short(text: str) -> str:
    if len(text) <= _MOST_LETTERS:
        return text
    return f"{text[:_MOST_LETTERS]}... ({len(text) - _MOST_LETTERS} more characters are left out)\n"
