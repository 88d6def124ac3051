"""Answers over HTTP as server-sent events: parts of an answer, each sent as it comes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from trims_predictors.endpoint.disconnects import hang_up, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send


class EventStream(Response):
    """A response whose events are made while it is sent. Its generator is closed when the client hangs up.

    Args:
        first: The first event, so that an error before it has a status of its own.
        rest: The events after it.
        lasting: Closed when the response has ended, in the task that made it: what counts the request.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], lasting: contextlib.ExitStack) -> None:
        super().__init__(None, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first, self._rest, self._lasting = first, rest, lasting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        del scope
        with contextlib.suppress(ClientDisconnect), self._lasting:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            sending = asyncio.ensure_future(self._send(send))
            gone = asyncio.ensure_future(hang_up(receive))
            try:
                await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
                if not sending.done():
                    raise ClientDisconnect
                sending.result()
            finally:
                for task in (sending, gone):
                    task.cancel()
                await asyncio.wait((sending, gone))
                await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for event in self._rest:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def event_stream(
    request: Request, events: AsyncGenerator[bytes, None], lasting: contextlib.ExitStack
) -> Response:
    """Return the response of these events, once the first is there. Raises what the generator raises before that.

    Args:
        request: Request whose client must wait; its body must have been read.
        events: All of them, each as it is sent.
    """

    async def begun() -> Response:
        return EventStream(await anext(events), events, lasting.pop_all())

    try:
        return await unless_gone(request, begun())
    except BaseException:
        await events.aclose()
        raise


def event(data: bytes | memoryview) -> bytes:
    """Return one event of the stream."""
    return b"".join((b"data: ", data, b"\n\n"))
