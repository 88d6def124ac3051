"""The store: orders, keys, brokenness, and time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S, Asker, error_of, leases, states, wait_until

from trims.core.errors import CapacityError, DrainingError, InUseError, ModelNotFoundError
from trims.core.place import CPU, DISK
from trims.core.replica import State
from trims.store.resolve import resolver
from trims.trace import spans
from trims.trace.reader import read_counts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon
    from trims.store.pending_requests import Pending


def test_an_image_is_named_by_the_beginning_of_its_key_too(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    key = asker.open(model()).key
    assert daemon.store.key_of("m") == daemon.store.key_of(key[:8]) == daemon.store.key_of(key) == key
    with pytest.raises(ModelNotFoundError):
        daemon.store.key_of(key[:7])


def test_a_key_is_not_told_for_names_that_were_never_loaded(daemon: Daemon, model: Callable[..., str]) -> None:
    with pytest.raises(ModelNotFoundError, match="'m' is registered but was never loaded here; `trims load m` does"):
        daemon.store.key_of(model())
    with pytest.raises(ModelNotFoundError, match="absent"):
        daemon.store.key_of("absent")


def test_an_eviction_frees_the_idle_refuses_the_leased_and_drains_if_told_to(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    granted = asker.open(model())
    daemon.store.load("m", DISK).result(WAIT_S)
    assert daemon.store.evict("m", DISK) == [DISK]
    with pytest.raises(InUseError, match=r"^m: the replica at cpu has 1 lease\(s\)"):
        daemon.store.evict("m")
    assert daemon.store.evict("m", drain=True) == [CPU]
    assert states(daemon) == {"cpu": "draining"}
    daemon.store.close(asker.session, granted.lease)
    wait_until(lambda: states(daemon) == {}, "it stays")
    assert daemon.store.evict("m") == []


def test_a_pin_keeps_an_image_from_eviction_and_does_not_load_it(daemon: Daemon, model: Callable[..., str]) -> None:
    daemon.store.pin(model(), CPU, pinned=True)
    assert states(daemon) == {}
    daemon.store.load("m").result(WAIT_S)
    with pytest.raises(InUseError, match="pinned; unpin it first"):
        daemon.store.evict("m")
    daemon.store.pin("m", CPU, pinned=False)
    assert daemon.store.evict("m") == [CPU]


@pytest.mark.parametrize("pinned", [False, True])
def test_an_image_whose_artifact_was_edited_goes_once_the_new_one_is_there(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    monkeypatch.setattr(resolver, "_TRUST_S", 0.0)
    daemon.registry.put({"name": "m", "artifact": {"path": str(checkpoint("m"))}}, "")
    if pinned:
        daemon.store.pin("m", CPU, pinned=True)
    first = asker.open("m")
    daemon.store.load("m", DISK).result(WAIT_S)
    checkpoint("m", nbytes=9000)
    second = asker.open("m")
    assert first.key != second.key
    old = lambda: sorted((str(each.place), each.state.value) for each in daemon.store._shell.places_of(first.key))  # noqa: E731
    wait_until(lambda: old() == [("cpu", "draining")], "the idle one on disk is freed, the leased one waits")
    daemon.store.close(asker.session, first.lease)
    wait_until(lambda: old() == [], "it stays")
    assert states(daemon)["cpu"] == "sealed"
    assert daemon.store.read.names_of(second.key) == ["m"]


def test_an_image_that_another_name_stands_for_stays_when_one_is_edited(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(resolver, "_TRUST_S", 0.0)
    path = checkpoint("m")
    shutil.copy(path, folder / "copy.npz")
    daemon.registry.put({"name": "m", "artifact": {"path": str(path)}}, "")
    daemon.registry.put({"name": "other", "artifact": {"path": str(folder / "copy.npz")}}, "")
    before = asker.open("m").key
    assert asker.open("other").key == before
    checkpoint("m", nbytes=9000)
    asker.open("m")
    assert [each.state.value for each in daemon.store._shell.places_of(before)] == ["sealed"]


def test_an_image_goes_with_the_last_of_its_names(daemon: Daemon, model: Callable[..., str]) -> None:
    for name in ("one", "two"):
        daemon.store.load(model(name)).result(WAIT_S)
    for name, left in (("one", {"cpu": "sealed"}), ("two", {})):
        daemon.registry.remove(name)
        daemon.store.retire(name)
        wait_until(lambda left=left: states(daemon) == left, "it stays")  # type: ignore[misc]


def test_a_deadline_is_due_and_its_request_is_answered_by_the_tick(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes="64KiB")
    asker = Asker(daemon)
    asker.open(checkpoint("a", nbytes=50_000))
    pending = asker.ask(checkpoint("b", nbytes=50_000), deadline_s=100_000.0)
    wait_until(lambda: _waits_for_room(daemon), "it does not wait for room")
    due_s = daemon.store.residency.next_due_s()
    assert due_s is not None
    daemon.store.tick(due_s - 1.0)
    assert not pending.done(0)
    wait_until(lambda: _tells_room(daemon, pending, due_s), "the deadline is not told")
    assert isinstance(error_of(pending), CapacityError)
    asker.end()


def _waits_for_room(daemon: Daemon) -> bool:
    """Return whether a queued replica has a size: its request then waits for room, no longer for a measurement."""
    return any(it.state is State.QUEUED and it.nbytes for it in daemon.store.read.replicas())


def _tells_room(daemon: Daemon, pending: Pending, due_s: float) -> bool:
    daemon.store.tick(due_s)
    return pending.done(0)


def test_a_draining_store_refuses_opens_and_keeps_its_leases(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    asker.open(model())
    daemon.store.drain()
    assert isinstance(error_of(asker.ask("m")), DrainingError)
    assert (leases(daemon), daemon.store.read.draining) == (1, True)


def test_a_replica_that_is_reported_broken_is_retired_and_loaded_again(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    granted = asker.open(model())
    daemon.store.close(asker.session, granted.lease)
    daemon.store.report_broken(granted.key, CPU, granted.generation, "a bit flipped")
    again = asker.open("m")
    assert again.generation > granted.generation
    assert daemon.store.counters["broken"] == 1


def test_bytes_of_tiers_and_leases_are_counted_where_everything_is_recorded(
    daemon: Daemon, asker: Asker, model: Callable[..., str], tmp_path: Path
) -> None:
    asker.open(model())
    spans.configure(tmp_path, "daemon", everything=True)
    try:
        daemon.store.tick(0.0)
    finally:
        spans.stop()
    found = {each.name: each.value for each in read_counts(tmp_path)}
    assert found["leases"] == 1
    assert found["cpu_bytes"] > 0
    assert "disk_bytes" in found
