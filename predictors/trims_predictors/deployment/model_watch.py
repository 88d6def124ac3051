"""Watch of a daemon's models: reports which ones changed, so that no request has to ask."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from trims.core.errors import CapacityError, NotSupportedError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trims.control import AsyncAdmin
    from trims.control.answers import ModelChange

_log = logging.getLogger(__name__)
#: Seconds until a daemon that is away is asked again.
_AGAIN_S = 1.0


class ModelWatch:
    """Stream of changes of one daemon, taken up again whenever it ends.

    Args:
        changed: Called with the names of models that changed; None for all: what happened before is not known.
    """

    def __init__(self, daemon: AsyncAdmin, changed: Callable[[Iterable[str] | None], None]) -> None:
        self._daemon = daemon
        self._changed = changed
        #: Whether every change is reported now. Else a description is to be asked for again after a moment.
        self.is_complete = False
        self._name = f"the endpoint with process {os.getpid()}"
        self._acted: ModelChange | None = None
        self._confirming: asyncio.Task[None] | None = None
        #: Streams that have begun and ended: with another number, another daemon may answer.
        self.streams = 0
        self._warned = False

    async def run(self) -> None:
        """Watch until the task is cancelled. A daemon that is away is asked again."""
        while True:
            try:
                await self._follow()
            except NotSupportedError:
                self._warn("the daemon is older and reports no changes of models: it is asked every second")
            except CapacityError as error:
                self._warn(f"changes of models are not reported, and the daemon is asked every second: {error}")
            except TrimsError as error:
                _log.debug("models are not watched: %s", error)
            except Exception:  # noqa: BLE001 - it ends for no error: all models would be asked for at each request
                _log.exception("models are not watched for a moment")
            await asyncio.sleep(_AGAIN_S)

    def _warn(self, text: str) -> None:
        """Log it once, until a stream begins again: it is tried every second."""
        if not self._warned:
            _log.warning("%s", text)
        self._warned = True

    async def _follow(self) -> None:
        first = True
        try:
            async for change in self._daemon.watch_models(self._name):
                if first or change.all:
                    self.streams += first
                    first = self._warned = False
                    self._changed(None)
                self._changed(change.names)
                self.is_complete = not change.outside
                self._confirm(change)
        finally:
            if self._confirming is not None:
                self._confirming.cancel()
            self.is_complete = False
            self.streams += not first

    def _confirm(self, change: ModelChange) -> None:
        """Have the daemon know that no request gets what was before, without a wait: the next change may be there."""
        self._acted = change
        if change.watch and (self._confirming is None or self._confirming.done()):
            self._confirming = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        sent = None
        while sent is not self._acted and self._acted is not None:
            sent = self._acted
            try:
                await self._daemon.confirm_models(sent)
            except TrimsError as error:
                _log.debug("a change of models is not confirmed: %s", error)
