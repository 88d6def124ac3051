"""Watchers: every watcher gets every change; one that does not keep up loses some, which are counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trims.core.place import CPU
from trims.core.replica import State
from trims.core.residency.events import Changed
from trims.store import watchers as module
from trims.store.watchers import Watchers

if TYPE_CHECKING:
    import pytest


def a_change(number: int) -> Changed:
    return Changed(at_s=float(number), key="a", place=CPU, generation=1, old=State.QUEUED, new=State.FILLING, why="")


def test_every_watcher_is_told_every_change_in_order_until_it_is_removed() -> None:
    counters = Counter[str]()
    watchers = Watchers(counters)
    first, second = watchers.add(), watchers.add()
    watchers.notify(a_change(1))
    watchers.remove(first)
    watchers.remove(first)
    watchers.notify(a_change(2))
    assert first.get_nowait() == a_change(1)
    assert [second.get_nowait(), second.get_nowait()] == [a_change(1), a_change(2)]
    assert (first.empty(), second.empty(), len(watchers), counters) == (True, True, 1, {})


def test_a_full_watcher_loses_the_latest_changes_and_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LENGTH", 3)
    counters = Counter[str]()
    watchers = Watchers(counters)
    slow, quick = watchers.add(), watchers.add()
    for number in range(5):
        watchers.notify(a_change(number))
        assert quick.get_nowait() == a_change(number)
    assert [slow.get_nowait().at_s for _ in range(3)] == [0.0, 1.0, 2.0]
    assert counters["watch_events_lost"] == 2
