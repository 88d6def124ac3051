"""Subscriptions to changes of models: of their manifests, of the images they stand for, and of their known tensors."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Names that a subscriber may have waiting; with more, everything counts as changed.
_MOST_NAMES = 1000


@dataclass(slots=True)
class Subscription:
    """Names that changed since its owner looked last. Each name is there once, however often its model changed."""

    _names: dict[str, None] = field(default_factory=dict)
    _all: bool = False
    _ready: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, names: Iterable[str]) -> None:
        """Add names. Never blocks."""
        with self._ready:
            self._names.update(dict.fromkeys(names))
            if len(self._names) > _MOST_NAMES:
                self._names, self._all = {}, True
            self._ready.notify_all()

    def take(self, timeout_s: float) -> tuple[list[str], bool]:
        """Wait for changes. Return the names, and whether all models count as changed; no names after the time."""
        with self._ready:
            self._ready.wait_for(lambda: self._names or self._all, timeout_s)
            taken = list(self._names), self._all
            self._names, self._all = {}, False
            return taken


class ModelChanges:
    """All subscriptions. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []

    def __len__(self) -> int:
        return len(self._subscriptions)

    def add(self) -> Subscription:
        """Subscribe; give the subscription back with `remove`."""
        made = Subscription()
        with self._lock:
            self._subscriptions.append(made)
        return made

    def remove(self, subscription: Subscription) -> None:
        """End a subscription. Idempotent."""
        with self._lock:
            self._subscriptions = [each for each in self._subscriptions if each is not subscription]

    def tell(self, names: Iterable[str]) -> None:
        """Pass names of models that changed on to every subscriber. Never blocks."""
        with self._lock:
            subscriptions = self._subscriptions
        if subscriptions:
            named = tuple(names)
            for each in subscriptions:
                each.tell(named)
