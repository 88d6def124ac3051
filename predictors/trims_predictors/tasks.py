"""Work in the background of an event loop: each piece is known until it has ended, and none fails in silence."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


class Background:
    """Tasks of one owner. Made and used in one event loop.

    Args:
        whose: The owner, for the log: what fails there is a bug.
        explained: Takes what a task raised, and returns True if that is no bug and was reported.
    """

    def __init__(self, whose: str, explained: Callable[[BaseException], bool] = lambda _: False) -> None:
        self._whose = whose
        self._explained = explained
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Awaitable[Any]) -> None:
        """Have it done. Its log lines are not about the request that it is begun for, which may end before it."""
        task = contextvars.Context().run(asyncio.ensure_future, work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def cancel(self) -> None:
        """Ask all that runs to end."""
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all that runs now has ended, however it does."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._explained(error):
            _log.critical("a bug in trims: the work of %s failed", self._whose, exc_info=error)
