"""Orders reach residency as events, and an order that meets an error loses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S, Asker, states, wait_until

from trims.core.errors import DrainingError, InUseError
from trims.core.place import CPU, DISK

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.daemon.main import Daemon


def test_a_leased_image_is_evicted_by_its_key_only_with_drain(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    granted = asker.open(model())
    with pytest.raises(InUseError, match=rf"^{granted.key[:16]}: "):
        daemon.store.evict_image(granted.key)
    assert daemon.store.evict_image(granted.key, drain=True) == [CPU]
    daemon.store.close(asker.session, granted.lease)
    wait_until(lambda: states(daemon) == {}, "it stays")


def test_an_image_that_a_name_stands_for_is_not_retired(daemon: Daemon, model: Callable[..., str]) -> None:
    key = daemon.store.load(model()).result(WAIT_S).key
    daemon.store._orders.retire_image(key, "m")
    assert states(daemon) == {"cpu": "sealed"}


def test_a_purge_frees_memory_though_it_is_pinned_and_leaves_the_disk(
    daemon: Daemon, model: Callable[..., str]
) -> None:
    daemon.store.load(model()).result(WAIT_S)
    daemon.store.load("m", DISK).result(WAIT_S)
    daemon.store.pin("m", CPU, pinned=True)
    daemon.store._orders.purge()
    assert states(daemon) == {"disk": "sealed"}


def test_a_draining_store_takes_no_new_opens(daemon: Daemon, asker: Asker, model: Callable[..., str]) -> None:
    name = model()
    daemon.store.drain()
    with pytest.raises(DrainingError):
        asker.open(name)
