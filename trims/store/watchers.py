"""Watchers of changes of state. A watcher that does not keep up loses changes; how many is counted."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

    from trims.core.residency.events import Changed

log = logging.getLogger(__name__)
_LENGTH = 1024


class Watchers:
    """All subscriptions.

    Args:
        counters: `watch_events_lost` counts the changes that a full watcher lost.
    """

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._queues: set[queue.Queue[Changed]] = set()

    def __len__(self) -> int:
        return len(self._queues)

    def add(self) -> queue.Queue[Changed]:
        """Subscribe; give the queue back with `remove`."""
        watcher: queue.Queue[Changed] = queue.Queue(_LENGTH)
        with self._lock:
            self._queues.add(watcher)
        return watcher

    def remove(self, watcher: queue.Queue[Changed]) -> None:
        """End a subscription. Idempotent."""
        with self._lock:
            self._queues.discard(watcher)

    def notify(self, change: Changed) -> None:
        """Pass a change on to every watcher. Never blocks: a full watcher loses it."""
        log.debug(
            "%s at %s: %s -> %s: %s", change.key[:16], change.place, change.old.value, change.new.value, change.why
        )
        with self._lock:
            queues = list(self._queues)
        for watcher in queues:
            try:
                watcher.put_nowait(change)
            except queue.Full:
                self._counters["watch_events_lost"] += 1
