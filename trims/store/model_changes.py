"""Subscriptions to changes of models: of their manifests, of the images they stand for, and of their known tensors.

Changes are numbered. A subscriber that has a name confirms what it has acted on, so an order can wait until no
subscriber acts on what was before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Names that a subscriber may have waiting; with more, everything counts as changed.
_MOST_NAMES = 1000
#: Stands for a subscriber without a name.
_NAMELESS = "a watcher that confirms no changes, such as an endpoint of an older trims"


@dataclass(slots=True, eq=False)
class Subscription:
    """Names that changed since its owner looked last. Each name is there once, however often its model changed.

    Attributes:
        watcher: Name of its owner; empty for one that confirms nothing.
        told: Number of the last change that it was given.
        confirmed: Number of the last change that its owner confirmed; -1 before the first.
        is_late: Whether its owner let a wait run out and has not caught up since: no other wait is held up by it.
    """

    watcher: str = ""
    number: int = 0
    notified: int = 0
    confirmed: int = -1
    is_late: bool = False
    _names: dict[str, None] = field(default_factory=dict)
    _all: bool = False
    _ready: threading.Condition = field(default_factory=threading.Condition)

    def notify(self, names: Iterable[str], sequence: int = 0) -> None:
        """Add names. Never blocks."""
        with self._ready:
            self.notified = sequence
            self._names.update(dict.fromkeys(names))
            if len(self._names) > _MOST_NAMES:
                self._names, self._all = {}, True
            self._ready.notify_all()

    def take(self, timeout_s: float) -> tuple[list[str], bool, int]:
        """Wait for changes. Return the names, whether all models count as changed, and the number of the last change.

        There are no names after the time.
        """
        with self._ready:
            self._ready.wait_for(lambda: self._names or self._all, timeout_s)
            taken = list(self._names), self._all, self.notified
            self._names, self._all = {}, False
            return taken


class ModelChanges:
    """All subscriptions. Safe to use from any thread."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._subscriptions: dict[int, Subscription] = {}
        self._sequence = self._last_number = 0

    def __len__(self) -> int:
        return len(self._subscriptions)

    def add(self, watcher: str = "") -> Subscription:
        """Subscribe; give the subscription back with `remove`."""
        with self._moved:
            self._last_number += 1
            made = Subscription(watcher, self._last_number, self._sequence)
            self._subscriptions[made.number] = made
        return made

    def remove(self, subscription: Subscription) -> None:
        """End a subscription. Idempotent."""
        with self._moved:
            self._subscriptions.pop(subscription.number, None)
            self._moved.notify_all()

    def notify(self, names: Iterable[str]) -> None:
        """Pass names of models that changed on to every subscriber. Never blocks."""
        with self._moved:
            self._sequence += 1
            if self._subscriptions:
                named = tuple(names)
                for each in self._subscriptions.values():
                    each.notify(named, self._sequence)

    def confirm(self, number: int, sequence: int) -> None:
        """Note that a subscriber has acted on all changes up to this one. One that is gone is ignored."""
        with self._moved:
            found = self._subscriptions.get(number)
            if found is not None:
                found.confirmed = max(found.confirmed, sequence)
                found.is_late = found.is_late and found.confirmed < found.notified
                self._moved.notify_all()

    def unconfirmed(self, timeout_s: float) -> list[str]:
        """Wait until the subscribers have confirmed all changes up to now. Return those that have not, by their names.

        A subscriber that is late already is not waited for.
        """
        with self._moved:
            sequence = self._sequence

            def behind() -> list[Subscription]:
                return [each for each in self._subscriptions.values() if each.watcher and each.confirmed < sequence]

            self._moved.wait_for(lambda: all(each.is_late for each in behind()), timeout_s)
            for each in behind():
                each.is_late = True
            nameless = [_NAMELESS for each in self._subscriptions.values() if not each.watcher]
            return [each.watcher for each in behind()] + nameless
