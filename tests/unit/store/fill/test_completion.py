"""Fills: what the catalog and the disk keep of an image that was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S, Asker, states, wait_until

from trims.core.place import CPU, DISK

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.daemon.main import Daemon


@pytest.mark.parametrize(("persist", "kept"), [("always", True), ("never", False), ("auto", False)])
def test_an_image_is_kept_on_disk_if_its_manifest_or_its_cost_says_so(
    daemon: Daemon, model: Callable[..., str], persist: str, kept: bool
) -> None:
    """A safetensors file takes no converter: `auto` does not keep what is cheap to make again."""
    daemon.store.load(model(persist=persist)).result(WAIT_S)
    wait_until(lambda: ("disk" in states(daemon)) == kept and "filling" not in states(daemon).values(), "not as said")
    assert (daemon.store.counters["fills.disk"] > 0) is kept


def test_a_fill_is_remembered_once_and_its_bytes_are_counted(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    granted = asker.open(model(nbytes=8192))
    record = daemon.store.catalog.image(granted.key)
    assert record is not None
    assert (record.key, record.name, record.nbytes) == (granted.key, "m", granted.nbytes)
    assert daemon.store.counters["filled_bytes.cpu"] == granted.nbytes


def test_a_catalog_that_cannot_remember_a_fill_fails_no_request(
    daemon: Daemon, asker: Asker, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(daemon.store.catalog, "remember_image", breaks)
    monkeypatch.setattr(daemon.store.catalog, "remember_seal", breaks)
    assert asker.open(model()).nbytes > 0
    assert daemon.store.catalog.image(asker.open("m").key) is None


def test_readers_of_an_image_on_disk_are_told_when_it_is_filled_in_memory(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    told: list[tuple[int, str]] = []
    daemon.store.subscribe_to_upgrades(lambda session, key: told.append((session, key)))
    on_disk = asker.open(model(), place=DISK)
    for _ in range(10):
        asker.open("m", place=DISK)
    assert told == []
    asker.open("m", place=CPU)
    once = (asker.session, on_disk.key)
    wait_until(lambda: told == [once], "it is not told, or more than once")
    daemon.store.taken_up(asker.session, on_disk.key)
    daemon.store.taken_up(asker.session + 1, on_disk.key)
    assert told == [once, once]
