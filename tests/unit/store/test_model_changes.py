"""Subscriptions to changes of models: each subscriber gets each name, and too many names count as all."""

from __future__ import annotations

import threading

from trims.store import model_changes as module
from trims.store.model_changes import ModelChanges, Subscription


def test_every_subscriber_gets_each_name_once_until_its_subscription_ends() -> None:
    changes = ModelChanges()
    changes.tell(["before"])
    first, second = changes.add(), changes.add()
    changes.tell(["a"])
    changes.tell(["b", "a"])
    assert first.take(0.0) == (["a", "b"], False)
    assert first.take(0.0) == ([], False)
    changes.remove(first)
    changes.remove(first)
    changes.tell(["c"])
    assert (first.take(0.0), second.take(0.0), len(changes)) == (([], False), (["a", "b", "c"], False), 1)


def test_more_names_than_are_kept_count_as_all() -> None:
    subscription = Subscription()
    subscription.tell(str(number) for number in range(module._MOST_NAMES + 1))
    assert subscription.take(0.0) == ([], True)
    subscription.tell(["later"])
    assert subscription.take(0.0) == (["later"], False)


def test_a_subscriber_that_waits_is_woken_by_a_change() -> None:
    subscription, taken = Subscription(), []
    waiter = threading.Thread(target=lambda: taken.append(subscription.take(60.0)))
    waiter.start()
    subscription.tell(["a"])
    waiter.join(20.0)
    assert taken == [(["a"], False)]
