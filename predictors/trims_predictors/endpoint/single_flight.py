"""One look at something slow, shared by everything that asks for it within a moment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Found = TypeVar("_Found")


class SingleFlight(Generic[_Found]):
    """Looks again at most once in a while, however many ask. Used in one event loop.

    Args:
        ask: The look itself; it raises nothing.
        fresh_s: Two looks begin at least so far apart.
        patience_s: How long a caller waits for a look. One that takes longer goes on, for those that ask later.
    """

    def __init__(self, ask: Callable[[], Awaitable[_Found]], *, fresh_s: float, patience_s: float) -> None:
        self._ask = ask
        self._fresh_s = fresh_s
        self._patience_s = patience_s
        self._looking: asyncio.Future[_Found] | None = None
        self._looked_s = 0.0

    async def look(self) -> _Found | None:
        """Return the last result, at most `fresh_s` old when asked for; None if the look takes too long."""
        looking = self._looking
        if looking is None or (looking.done() and time.monotonic() - self._looked_s > self._fresh_s):
            looking = self._looking = asyncio.ensure_future(self._ask())
            self._looked_s = time.monotonic()
        await asyncio.wait((looking,), timeout=self._patience_s)
        return looking.result() if looking.done() and not looking.cancelled() else None

    def expire(self) -> None:
        """Have the next caller look again: something was changed."""
        self._looked_s = float("-inf")

    async def close(self) -> None:
        """Give up a look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))
