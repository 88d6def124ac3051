"""Answers in parts: a large body goes out in pieces, as fast as the client takes them."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING

from fastapi import Response

from trims_predictors.endpoint.bodies import pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import Receive, Scope, Send

#: Bytes that are given to the server at once: it copies them.
_PIECE_BYTES = 1 << 20
#: Answers of more bytes are packed in a thread, and sent in pieces.
_LARGE_BYTES = 256 << 10
_NBYTES = attrgetter("nbytes")


class LargeResponse(Response):
    """A response whose body is not put together.

    Args:
        headers: Others.
    """

    def __init__(self, parts: Sequence[bytes | memoryview], media_type: str, headers: dict[str, str]) -> None:
        self._parts = [memoryview(part).cast("B") for part in parts]
        length = str(sum(part.nbytes for part in self._parts))
        super().__init__(None, media_type=media_type, headers={**headers, "content-length": length})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for at in range(0, part.nbytes, _PIECE_BYTES):
                piece = part[at : at + _PIECE_BYTES].tobytes()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def packed_response(
    parts: Sequence[bytes | memoryview],
    coding: str | None = None,
    media_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response with a body of these parts, in the coding of `bodies.accepted_coding`."""
    named, views = dict(headers or {}), [memoryview(part) for part in parts]
    small = sum(map(_NBYTES, views)) <= _LARGE_BYTES
    if coding is not None:
        named["Content-Encoding"] = coding
        packed = pack(views, coding) if small else await asyncio.to_thread(pack, views, coding)
        views, small = [memoryview(packed)], len(packed) <= _LARGE_BYTES
    if small:
        return Response(b"".join(views), media_type=media_type, headers=named)
    return LargeResponse(views, media_type, named)
