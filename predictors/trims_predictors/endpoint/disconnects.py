"""Work that ends with the client that asked for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive


async def unless_gone(request: Request, work: Awaitable[Response]) -> Response:
    """Await the work, and cancel it if the client hangs up. The body of the request must have been read.

    Raises ClientDisconnect if it does.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(hang_up(request.receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait((working,))
        raise ClientDisconnect
    finally:
        gone.cancel()
        working.cancel()


async def hang_up(receive: Receive) -> None:
    """Return when the client has hung up. The body of its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
