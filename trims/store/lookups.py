"""Names that are being looked into: one look for each name, however many ask, and deadlines that hold meanwhile.

Looking may take minutes (a builder runs, a large file is hashed), so it happens in workers of its own and never holds
up another name. Not covered: what looking means (`resolve`).
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from trims.core.errors import DeadlineError, InternalError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.store.asks import Ask
    from trims.store.resolve import Resolved, Resolver

log = logging.getLogger(__name__)
_WORKERS = 8


class Lookups:
    """All looks that are running.

    Args:
        resolver: Looks.
        found: Called from a worker, once for each ask, with what was found or the error.
    """

    def __init__(self, resolver: Resolver, found: Callable[[Ask, Resolved | TrimsError], None]) -> None:
        self._resolver = resolver
        self._found = found
        self._lock = threading.Lock()
        self._asks: dict[str, list[Ask]] = {}
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="trims-resolve")

    def add(self, ask: Ask) -> None:
        """Have the name looked into, or join the look that is running."""
        with self._lock:
            first = ask.name not in self._asks
            self._asks.setdefault(ask.name, []).append(ask)
        if first:
            self._workers.submit(self._look, ask.name)

    def next_due_s(self) -> float | None:
        """Clock time of the next deadline among those who wait."""
        with self._lock:
            due = [ask.deadline_at_s for asks in self._asks.values() for ask in asks]
        return min((moment for moment in due if moment is not None), default=None)

    def expire(self, now_s: float) -> None:
        """Answer those whose deadline has passed; the look goes on."""
        late: list[Ask] = []
        with self._lock:
            for asks in self._asks.values():
                overdue = [ask for ask in asks if ask.deadline_at_s is not None and ask.deadline_at_s <= now_s]
                late += overdue
                for ask in overdue:
                    asks.remove(ask)
        for ask in late:
            error = DeadlineError(f"the deadline passed while {ask.name!r} was being looked into; ask again")
            self._found(ask, error)

    def stop(self) -> list[Ask]:
        """Wait for running looks; returns who was never answered."""
        self._workers.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            left = [ask for asks in self._asks.values() for ask in asks]
            self._asks.clear()
        return left

    def _look(self, name: str) -> None:
        try:
            result: Resolved | TrimsError = self._resolver.resolve(name)
        except TrimsError as error:
            result = error
        except OSError as error:
            result = InternalError(f"{name}: {error}")
        except Exception as error:
            log.exception("looking into %s failed", name)
            result = InternalError(f"{name}: {type(error).__name__}: {error}")
        with self._lock:
            asks = self._asks.pop(name, [])
        for ask in asks:
            self._found(ask, result)
