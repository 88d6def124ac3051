"""Answers of the attach door, as both ends know them: the version they speak, and how an error travels.

Apart from `messages`, so that a client that only asks does not import how requests are checked.
"""

from __future__ import annotations

from trims.core.errors import BadMessageError, TrimsError, from_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trims.wire.frames import Message

PROTOCOL_VERSION = 1
#: Characters of an error's message that travel. What errors quote may be as long as a request; in JSON a character
#: takes up to 12 bytes, and the whole must fit into one frame.
MAX_ERROR_CHARACTERS = 4000


def error_message(error: TrimsError, request_id: int | None) -> Message:
    """Return an answer with an error; without an id it concerns the whole session, which then ends."""
    return {"id": request_id, "error": {"code": error.code, "message": shortened(str(error))}}


def shortened(message: str) -> str:
    """Return a message that fits into a frame; the middle of a longer one is left out."""
    if len(message) <= MAX_ERROR_CHARACTERS:
        return message
    half = MAX_ERROR_CHARACTERS // 2
    return f"{message[:half]} [... {len(message) - 2 * half} characters left out ...] {message[-half:]}"


def raise_if_error(message: Message) -> Message:
    """Return the answer, or raise the error it carries."""
    error: Any = message.get("error")
    if error is None:
        return message
    if not isinstance(error, dict):
        raise BadMessageError(f"the daemon sent an unreadable error: {error!r}"[:200])
    raise from_code(str(error.get("code")), str(error.get("message")))
