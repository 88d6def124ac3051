"""Frames of the attach door: a 4-byte big-endian length, then that many bytes of UTF-8 JSON, always an object.

Descriptors ride on the first byte of the frame they belong to (SCM_RIGHTS). `Decoder` takes bytes as they come, whole
frames or single bytes; anything that is not a frame is a BadMessageError and ends the session that sent it.
"""

from __future__ import annotations

import json
import struct

from trims.core.errors import BadMessageError

LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 64 << 10

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

_to_text = json.JSONEncoder(separators=(",", ":")).encode
_from_text = json.JSONDecoder().decode


def encode(message: Message) -> bytes:
    """Return one message as a frame. Raises BadMessageError if it is too long for one."""
    body = _to_text(message).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise BadMessageError(f"a message of {len(body)} bytes is too long; {MAX_FRAME_BYTES} are the limit")
    return LENGTH.pack(len(body)) + body


class Decoder:
    """Turn a stream of bytes into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def partial(self) -> bool:
        """Return whether a frame has begun and not ended."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes in. Return the messages they complete. Raises BadMessageError."""
        if not self._pending:
            whole = self._only(data)
            if whole is not None:
                return [whole]
        self._pending += data
        messages = []
        while len(self._pending) >= LENGTH.size:
            end = LENGTH.size + _checked_length(self._pending)
            if len(self._pending) < end:
                break
            messages.append(_parse(self._pending[LENGTH.size : end]))
            del self._pending[:end]
        return messages

    @staticmethod
    def _only(data: bytes) -> Message | None:
        """Decode the common case without copying: exactly one frame. Return None for anything else."""
        if len(data) < LENGTH.size or len(data) != LENGTH.size + _checked_length(data):
            return None
        return _parse(data[LENGTH.size :])


def _checked_length(data: bytes | bytearray) -> int:
    (length,) = LENGTH.unpack_from(data)
    if not 0 < length <= MAX_FRAME_BYTES:
        raise BadMessageError(f"a frame claims {length} bytes; 1 to {MAX_FRAME_BYTES} are allowed")
    return int(length)


def _parse(body: bytes | bytearray) -> Message:
    try:
        message = _from_text(body.decode())
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"a frame is not UTF-8 JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadMessageError(f"a frame holds a {type(message).__name__}; an object is expected")
    return message
