"""Subscriptions to changes of models: each subscriber gets each name, and too many names count as all."""

from __future__ import annotations

import threading

from trims.store import model_changes as module
from trims.store.model_changes import ModelChanges, Subscription


def test_every_subscriber_gets_each_name_once_until_its_subscription_ends() -> None:
    changes = ModelChanges()
    changes.notify(["before"])
    first, second = changes.add(), changes.add()
    changes.notify(["a"])
    changes.notify(["b", "a"])
    assert first.take(0.0) == (["a", "b"], False, 3)
    assert first.take(0.0) == ([], False, 3)
    changes.remove(first)
    changes.remove(first)
    changes.notify(["c"])
    assert (first.take(0.0), second.take(0.0), len(changes)) == (([], False, 3), (["a", "b", "c"], False, 4), 1)


def test_more_names_than_are_kept_count_as_all() -> None:
    subscription = Subscription()
    subscription.notify(str(number) for number in range(module._MOST_NAMES + 1))
    assert subscription.take(0.0)[:2] == ([], True)
    subscription.notify(["later"])
    assert subscription.take(0.0)[:2] == (["later"], False)


def test_a_subscriber_that_waits_is_woken_by_a_change() -> None:
    subscription, taken = Subscription(), []
    waiter = threading.Thread(target=lambda: taken.append(subscription.take(60.0)))
    waiter.start()
    subscription.notify(["a"], 7)
    waiter.join(20.0)
    assert taken == [(["a"], False, 7)]


def test_an_order_waits_until_each_named_watcher_has_confirmed_its_change() -> None:
    changes, found = ModelChanges(), list[list[str]]()
    watchers = [changes.add(name) for name in ("first", "second")]
    changes.notify(["a"])
    order = threading.Thread(target=lambda: found.append(changes.unconfirmed(60.0)))
    order.start()
    first, second = watchers
    changes.confirm(first.number, 1)
    changes.confirm(second.number, 0)  # its stream has begun, and it has not acted on the change
    order.join(0.05)
    assert order.is_alive()
    changes.confirm(second.number, 1)
    order.join(20.0)
    assert found == [[]]


def test_a_watcher_that_ends_holds_up_no_order() -> None:
    changes, found = ModelChanges(), list[list[str]]()
    watcher = changes.add("first")
    changes.notify(["a"])
    order = threading.Thread(target=lambda: found.append(changes.unconfirmed(60.0)))
    order.start()
    changes.remove(watcher)
    order.join(20.0)
    assert found == [[]]


def test_a_late_watcher_is_named_and_waited_for_once_until_it_has_caught_up() -> None:
    changes = ModelChanges()
    late, nameless = changes.add("late"), changes.add()
    for _ in range(3):
        changes.notify(["a"])
        assert changes.unconfirmed(0.01 if not late.is_late else 3600.0) == ["late", module._NAMELESS]
    changes.remove(nameless)
    changes.confirm(late.number, 2)
    assert late.is_late
    changes.confirm(late.number, 3)
    assert not late.is_late
    assert changes.unconfirmed(60.0) == []
    changes.confirm(99, 5)
