"""Orders to load a model: those for the same one share a load, and the last that is given up ends it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, DeadlineError, InUseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trims.control import AsyncAdmin, Replica

#: Seconds for a load, its conversion and the turn before it.
_LOAD_S = 600.0
#: Seconds to wait for room, and for readers of the last image: predictors that were just asked to end take moments.
_PATIENCE_S = 5.0
#: The daemon serves more, and leaves the others to other programs.
_AT_ONCE = 32


@dataclass(eq=False, slots=True)
class _Load:
    task: asyncio.Task[Replica]
    orders: int = 0


class LoadRequests:
    """Load models. Used in one event loop.

    Args:
        make_way: Ends an idle predictor, which holds a lease, or a spare on a device; says whether there was one.
        patience_s: Seconds that a load waits for room, and for readers of an image that is being evicted.
        at_once: Requests that run; others wait for one of them to end.
    """

    def __init__(
        self,
        daemon: AsyncAdmin,
        make_way: Callable[[str | None], Awaitable[bool]],
        *,
        patience_s: float = _PATIENCE_S,
        at_once: int = _AT_ONCE,
    ) -> None:
        self._daemon = daemon
        self._make_way = make_way
        self._patience_s = patience_s
        self._turns = asyncio.Semaphore(at_once)
        self._running: dict[tuple[str, str | None], _Load] = {}

    async def load(self, model: str, place: str | None = None) -> Replica:
        """Have a model's weights at a place.

        A load takes as long as it needs. Room, and readers of an image that is being evicted there, are waited for
        `patience_s`. For room idle predictors end, one after the other.

        Args:
            place: Place to load to; None for what the manifest says.

        Raises:
            DeadlineError: The load takes more than ten minutes.
            TrimsError: What the daemon says.
        """
        key = (model, place)
        load = self._running.get(key)
        if load is None:
            load = self._running[key] = _Load(asyncio.ensure_future(self._load(model, place)))
            load.task.add_done_callback(lambda _: self._forget(key, load))
        load.orders += 1
        try:
            return await asyncio.shield(load.task)
        finally:
            load.orders -= 1
            if not load.orders:
                self._forget(key, load)
                load.task.cancel()

    def _forget(self, key: tuple[str, str | None], load: _Load) -> None:
        if load.task.done() and not load.task.cancelled():
            load.task.exception()  # an order that was given up does not ask for it
        if self._running.get(key) is load:
            del self._running[key]

    async def _load(self, model: str, place: str | None) -> Replica:
        try:
            return await asyncio.wait_for(self._in_turn(model, place), _LOAD_S)
        except DeadlineError:  # a TimeoutError, too, but the daemon's
            raise
        except asyncio.TimeoutError:
            raise DeadlineError(f"{model}: its load takes more than {_LOAD_S:g} s; it goes on, ask again") from None

    async def _in_turn(self, model: str, place: str | None) -> Replica:
        load = self._daemon.load
        has_waited = False
        async with self._turns:
            while True:
                try:  # without a deadline it goes on if it has begun, else the cause to wait is reported at once
                    return await load(model, place)
                except (CapacityError, InUseError) as error:
                    if not error.retryable:
                        raise
                    has_less = isinstance(error, CapacityError) and await self._make_way(place)
                    if has_waited and not has_less:
                        raise
                has_waited = True
                with contextlib.suppress(DeadlineError):
                    return await load(model, place, deadline_s=self._patience_s)
