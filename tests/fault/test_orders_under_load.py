"""Orders and partings at the worst moment: while a load runs, while readers read, while others wait."""

# fault (daemon): it is ended or purged while loads run -> waiting clients get `lost_peer`; no process, no memory
# fault (capacity): a deadline passes during a load, or while waiting for room -> `deadline`, `capacity`; the load
# goes on
# fault (capacity): a session ends while its open is looked up, loaded or waiting -> nothing; a running load is kept
# fault (capacity): orders for a replica that is leased, filling or copied from -> `in_use`, or freed after the last
# reader

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from looking import (
    WAIT_S,
    Asker,
    charged,
    error_of,
    leases,
    nothing_is_left,
    put_on_disk,
    replicas,
    restart,
    states,
    wait_until,
)
from trims_client import connect

from trims.core.errors import (
    DeadlineError,
    DrainingError,
    InUseError,
    LostPeerError,
    ModelNotFoundError,
)
from trims.core.place import CPU, DISK
from trims.daemon.control_door import MAX_STREAMS
from trims.store.resolve.resolver import Resolver
from trims.testing.control import control
from trims.testing.tiers import SlowTier
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon


@pytest.fixture
def slow(daemon: Daemon) -> Iterator[SlowTier]:
    """The cpu tier stands still inside its first fill until the test says `go_on`."""
    made = daemon.store.tiers[CPU] = SlowTier(daemon.store.tiers[CPU])
    yield made
    made.go_on.set()


@pytest.fixture
def slow_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Looking into a name stands still: (entered, go_on)."""
    entered, go_on, real = threading.Event(), threading.Event(), Resolver.resolve

    def resolve(resolver: Resolver, name: str, *reading: Any) -> object:
        entered.set()
        assert go_on.wait(WAIT_S)
        return real(resolver, name, *reading)

    monkeypatch.setattr(Resolver, "resolve", resolve)
    yield entered, go_on
    go_on.set()


def register(daemon: Daemon, name: str, path: Path, **residency: object) -> None:
    with control(str(daemon.config.runtime_dir)) as door:
        manifest = f"{{name: {name}, artifact: {{path: {path}}}, residency: {residency!r}}}"
        door.Register(pb.RegisterRequest(manifest_yaml=manifest.replace("True", "true"), replace=True))


def unregister(daemon: Daemon, name: str) -> None:
    with control(str(daemon.config.runtime_dir)) as door:
        door.Unregister(pb.NameRequest(name=name))


# -- deadlines and partings ----------------------------------------------------------------------------------------


def test_a_deadline_that_passes_during_a_load_says_so_and_the_load_goes_on(
    daemon: Daemon, asker: Asker, slow: SlowTier, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    patient = asker.ask(path)
    assert slow.entered.wait(WAIT_S)
    error = error_of(asker.ask(path, deadline_s=0.05))
    assert type(error) is DeadlineError
    assert "the deadline passed while it was loaded to cpu" in str(error)
    assert "the load goes on" in str(error)
    slow.go_on.set()
    assert patient.result(WAIT_S)
    assert asker.open(path).warm
    assert daemon.store.counters["fills.cpu"] == 1


def test_a_deadline_that_passes_while_the_name_is_looked_into_says_that(
    asker: Asker,
    checkpoint: Callable[..., Path],
    slow_resolver: tuple[threading.Event, threading.Event],
) -> None:
    entered, go_on = slow_resolver
    path = checkpoint("m")
    late, patient = asker.ask(path, deadline_s=0.05), asker.ask(path)
    assert entered.wait(WAIT_S)
    error = error_of(late)
    assert type(error) is DeadlineError
    assert "being looked into" in str(error)
    go_on.set()
    assert patient.result(WAIT_S)


# fault (capacity): a session ends while its open is looked up, loaded or waiting
def test_a_session_that_ends_during_its_load_gets_no_lease_and_the_image_is_kept(
    daemon: Daemon, asker: Asker, slow: SlowTier, checkpoint: Callable[..., Path]
) -> None:
    asker.ask(checkpoint("m"))
    assert slow.entered.wait(WAIT_S)
    asker.end()
    slow.go_on.set()
    wait_until(lambda: states(daemon) == {"cpu": "sealed"}, "the load was not finished")
    assert leases(daemon) == 0
    nothing_is_left(daemon)


def test_a_session_that_ends_while_its_name_is_looked_into_starts_no_load(
    daemon: Daemon,
    asker: Asker,
    checkpoint: Callable[..., Path],
    slow_resolver: tuple[threading.Event, threading.Event],
) -> None:
    entered, go_on = slow_resolver
    pending = asker.ask(checkpoint("m"))
    assert entered.wait(WAIT_S)
    asker.end()
    go_on.set()
    assert isinstance(error_of(pending), LostPeerError)
    assert daemon.store.counters["fills.cpu"] == 0
    assert replicas(daemon) == {}


def test_a_session_that_ends_right_after_its_name_was_looked_into_starts_no_load(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup's worker has taken the request out of its list, and has not passed it on yet."""
    real = daemon.store._opens.lookups._found

    def found(ask: Any, result: Any) -> None:
        asker.end()
        real(ask, result)

    monkeypatch.setattr(daemon.store._opens.lookups, "_found", found)
    assert isinstance(error_of(asker.ask(checkpoint("m"))), LostPeerError)
    assert daemon.store.counters["fills.cpu"] == 0
    assert replicas(daemon) == {}


def test_an_eviction_returns_although_the_model_is_loaded_again_meanwhile(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"file:{checkpoint('m')}"
    daemon.store.load(name, CPU).result(WAIT_S)
    real, told = daemon.store._shell.wait_for, []

    def loaded_again(holds: Callable[[], bool], timeout_s: float) -> bool:
        wait_until(lambda: replicas(daemon) == {}, "it is not freed")
        daemon.store.load(name, CPU).result(WAIT_S)
        told.append(real(holds, 0.0))
        return told[-1]

    monkeypatch.setattr(daemon.store._shell, "wait_for", loaded_again)
    assert daemon.store.evict(name, CPU) == [CPU]
    assert told == [True], "what was evicted is gone, whatever came after it"


def test_a_session_that_ends_while_it_waits_for_room_leaves_the_queue_to_the_next(
    new_asker: Callable[[Daemon], Asker], serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=150_000, converters=1)
    holder, leaver, stayer = new_asker(daemon), new_asker(daemon), new_asker(daemon)
    paths = [checkpoint(name, nbytes=100_000) for name in "abc"]
    holder.open(paths[0])
    leaver.ask(paths[1], deadline_s=WAIT_S)
    wait_until(lambda: daemon.store.runner._plans._plans, "the load was not planned")
    waiting = stayer.ask(paths[2], deadline_s=WAIT_S)
    leaver.end()
    holder.end()
    assert waiting.result(WAIT_S).nbytes
    assert daemon.store.counters["fills.cpu"] == 2
    nothing_is_left(daemon)


# fault (daemon): it is ended or purged while loads run
def test_a_daemon_ends_although_loads_wait_for_room_and_for_a_converter(
    new_asker: Callable[[Daemon], Asker], serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=150_000, converters=1)
    asker = new_asker(daemon)
    asker.open(checkpoint("a", nbytes=100_000))
    for_room = asker.ask(checkpoint("b", nbytes=100_000), deadline_s=1000.0)
    wait_until(lambda: daemon.store.runner._plans._plans, "the load was not planned")
    for_a_converter = asker.ask(checkpoint("c", nbytes=100_000), deadline_s=1000.0)
    wait_until(lambda: len(replicas_of_all(daemon)) == 3, "the third was not asked for")
    restart(daemon, serve)
    for pending in (for_room, for_a_converter):
        assert error_of(pending).code in ("lost_peer", "conversion")


def replicas_of_all(daemon: Daemon) -> list[tuple[str, object]]:
    return list(daemon.store.residency.replicas)


def test_an_answer_that_comes_after_the_door_is_shut_goes_nowhere(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    session.open_file(checkpoint("m")).close()
    (served,) = daemon.attach.connections()
    daemon.ask_to_end(purge=True)
    daemon.stop()
    reader, writer = os.pipe()  # the door's descriptors are free, and others have them now
    daemon.attach._answered(served, 1, LostPeerError("the daemon is shutting down"))
    os.close(writer)
    assert os.read(reader, 8) == b""
    os.close(reader)


# -- evicting ------------------------------------------------------------------------------------------------------


def test_what_is_being_filled_is_not_evicted_not_even_by_draining(
    daemon: Daemon, asker: Asker, slow: SlowTier, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    pending = asker.ask(path)
    assert slow.entered.wait(WAIT_S)
    for drain in (False, True):
        with pytest.raises(InUseError, match="is filling"):
            daemon.store.evict(f"file:{path}", drain=drain)
    slow.go_on.set()
    assert pending.result(WAIT_S)


def test_a_draining_eviction_frees_a_replica_when_its_last_reader_closes(
    new_asker: Callable[[Daemon], Asker], daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m", nbytes=100_000)
    expected = np.random.default_rng(ord("m")).random(12_500)
    name = f"file:{path}"
    with session.open_file(path) as weights:
        with pytest.raises(InUseError, match=r"1 lease.*evict with drain"):
            daemon.store.evict(name)
        assert states(daemon) == {"cpu": "sealed"}
        daemon.store.evict(name, drain=True)
        assert states(daemon) == {"cpu": "draining"}
        with pytest.raises(InUseError, match="set a deadline to wait"):
            session.open_file(path)
        waiting = new_asker(daemon).ask(path, deadline_s=WAIT_S)
        np.testing.assert_array_equal(weights["weight"], expected)
    assert not waiting.result(WAIT_S).warm
    assert daemon.store.counters["fills.cpu"] == 2
    nothing_is_left(daemon)


def test_a_source_that_is_evicted_while_it_is_copied_goes_when_the_copy_is_done(
    daemon: Daemon, asker: Asker, slow: SlowTier, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    put_on_disk(daemon, path)
    pending = asker.ask(path)
    assert slow.entered.wait(WAIT_S)
    with pytest.raises(InUseError, match="1 running copies"):
        daemon.store.evict(f"file:{path}", DISK)
    daemon.store.evict(f"file:{path}", DISK, drain=True)
    assert states(daemon) == {"cpu": "filling", "disk": "draining"}
    slow.go_on.set()
    assert pending.result(WAIT_S)
    wait_until(lambda: states(daemon) == {"cpu": "sealed"}, "the source stays")
    assert charged(daemon, DISK) == 0
    nothing_is_left(daemon)


def test_a_draining_daemon_refuses_opens_and_lets_readers_read(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    with session.open_file(path) as weights:
        daemon.store.drain()
        with pytest.raises(DrainingError, match="draining"):
            session.open_file(path)
        assert weights["weight"].size
    assert leases(daemon) == 0


# -- pinning -------------------------------------------------------------------------------------------------------


def test_what_is_pinned_while_it_is_filled_stays_and_goes_again_when_it_is_unpinned(
    new_asker: Callable[[Daemon], Asker], serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=150_000)
    slow = daemon.store.tiers[CPU] = SlowTier(daemon.store.tiers[CPU])
    asker = new_asker(daemon)
    a, b = (checkpoint(name, nbytes=100_000) for name in "ab")
    pending = asker.ask(a)
    assert slow.entered.wait(WAIT_S)
    daemon.store.pin(f"file:{a}", CPU, pinned=True)
    slow.go_on.set()
    pending.result(WAIT_S)
    asker.end()
    second = new_asker(daemon)
    error = error_of(second.ask(b))
    assert "pinned" in str(error)
    assert error.code == "capacity"
    with pytest.raises(InUseError, match="unpin it first"):
        daemon.store.evict(f"file:{a}")
    daemon.store.pin(f"file:{a}", CPU, pinned=False)
    assert second.open(b).nbytes
    assert daemon.store.counters["evictions.cpu"] == 1


def test_a_pin_of_an_order_and_a_pin_of_a_manifest_outlive_the_daemon(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve()
    register(daemon, "ordered", checkpoint("a"))
    register(daemon, "stated", checkpoint("b"), pin=True)
    register(daemon, "loose", checkpoint("c"))
    daemon.store.pin("ordered", CPU, pinned=True)
    with connect(daemon.config.runtime_dir) as session:
        for name in ("ordered", "stated", "loose"):
            session.open(name).close()
    daemon = restart(daemon, serve)
    assert daemon.store.counters["adopted"] == 3
    with control(str(daemon.config.runtime_dir)) as door:
        pinned = {tuple(replica.names): replica.pinned for replica in door.Resident(pb.Empty()).replicas}
    assert pinned == {("ordered",): True, ("stated",): True, ("loose",): False}


def test_a_pin_dies_with_its_name_also_when_nothing_was_loaded(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    register(daemon, "m", path)
    daemon.store.pin("m", CPU, pinned=True)
    unregister(daemon, "m")
    asker.open(path)
    asker.end()
    assert daemon.store.evict(f"file:{path}") == [CPU]


def test_two_names_of_one_image_pin_it_until_both_have_let_go(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    for name in ("one", "two"):
        register(daemon, name, path)
        daemon.store.load(name).result(WAIT_S)
        daemon.store.pin(name, CPU, pinned=True)
    daemon.store.pin("one", CPU, pinned=False)
    assert replicas(daemon)["cpu"].pinned
    unregister(daemon, "two")
    assert not replicas(daemon)["cpu"].pinned


# -- names that go -------------------------------------------------------------------------------------------------


def test_a_name_that_is_removed_takes_its_image_along_when_the_last_reader_is_done(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("m"))
    with session.open("m") as weights:
        unregister(daemon, "m")
        assert weights["weight"].size
        with pytest.raises(ModelNotFoundError, match="'m'"):
            session.open("m")
    wait_until(lambda: replicas(daemon) == {}, "the image stays")
    nothing_is_left(daemon)


def test_a_name_removed_during_its_load_still_serves_its_waiters(
    daemon: Daemon, asker: Asker, slow: SlowTier, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("m"))
    pending = asker.ask("m")
    assert slow.entered.wait(WAIT_S)
    unregister(daemon, "m")
    slow.go_on.set()
    assert pending.result(WAIT_S)
    assert isinstance(error_of(asker.ask("m")), ModelNotFoundError)
    nothing_is_left(daemon)


def test_an_image_stays_for_as_long_as_another_name_stands_for_it(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    for name in ("one", "two"):
        register(daemon, name, path)
        daemon.store.load(name).result(WAIT_S)
    assert daemon.store.counters["fills.cpu"] == 1
    unregister(daemon, "one")
    assert states(daemon) == {"cpu": "sealed"}
    unregister(daemon, "two")
    wait_until(lambda: replicas(daemon) == {}, "the image stays")


def test_a_replaced_manifest_serves_the_new_artifact_and_its_readers_keep_the_old(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("old", {"a": np.zeros(4, np.float32)}))
    with session.open("m") as old:
        register(daemon, "m", checkpoint("new", {"a": np.ones(4, np.float32)}))
        with session.open("m") as new:
            assert new["a"].sum() == 4
            assert old["a"].sum() == 0
    nothing_is_left(daemon)


# -- time and restarts ---------------------------------------------------------------------------------------------


def test_a_keep_alive_that_runs_out_frees_memory_and_not_the_disk(
    new_asker: Callable[[Daemon], Asker], serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(keep_alive_s="0.05")
    path = checkpoint("m")
    put_on_disk(daemon, path)
    asker = new_asker(daemon)
    asker.open(path)
    assert states(daemon) == {"cpu": "sealed", "disk": "sealed"}
    asker.end()
    wait_until(lambda: states(daemon) == {"disk": "sealed"}, "keep-alive never ended")
    nothing_is_left(daemon)


def test_the_keep_alive_of_a_manifest_beats_the_daemons(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(keep_alive_s="100000")
    register(daemon, "short", checkpoint("a"), keep_alive_s=0.05)
    register(daemon, "plain", checkpoint("b"))
    with connect(daemon.config.runtime_dir) as session:
        session.open("plain").close()
        session.open("short").close()
    wait_until(lambda: len(replicas_of_all(daemon)) == 1, "the short one stays")
    assert list(replicas(daemon)["cpu"].names) == ["plain"]
    assert 0 < replicas(daemon)["cpu"].keep_left_s <= 100_000


def test_a_daemon_that_has_become_too_small_frees_what_does_not_fit(
    new_asker: Callable[[Daemon], Asker],
    serve: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    daemon = serve()
    asker = new_asker(daemon)
    for name in "ab":
        asker.open(checkpoint(name, nbytes=100_000))
    daemon = restart(daemon, serve, cpu_capacity_bytes=150_000)
    assert daemon.store.counters["adopted"] == 1
    assert "the tier has become too small for it" in caplog.text
    nothing_is_left(daemon)


# -- watching ------------------------------------------------------------------------------------------------------


def test_a_watcher_sees_every_step_in_order(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, "m", checkpoint("m"))
    with control(str(daemon.config.runtime_dir)) as door:
        changes = door.Watch(pb.Empty())
        wait_until(lambda: daemon.store.watchers._queues, "no watcher subscribed")
        daemon.store.load("m").result(WAIT_S)
        daemon.store.evict("m")
        seen = [next(changes) for _ in range(5)]
        changes.cancel()
    assert [(change.old, change.new) for change in seen] == [
        ("absent", "queued"),
        ("queued", "filling"),
        ("filling", "sealed"),
        ("sealed", "freeing"),
        ("freeing", "absent"),
    ]
    assert {(change.place, *change.names) for change in seen} == {("cpu", "m")}
    wait_until(lambda: not daemon.store.watchers._queues, "the subscription outlives its reader")


# fault (daemon): too many loads and watches at once -> `capacity` for the next; short calls work
def test_a_crowd_of_watchers_leaves_the_door_open_for_others(daemon: Daemon) -> None:
    with control(str(daemon.config.runtime_dir)) as door:
        watches = [door.Watch(pb.Empty()) for _ in range(MAX_STREAMS)]
        wait_until(lambda: len(daemon.store.watchers._queues) == MAX_STREAMS, "not all subscribed")
        assert door.Health(pb.Empty(), timeout=WAIT_S).status == "serving"
        with pytest.raises(grpc.RpcError, match="48 loads and watches are running, which is the limit"):
            next(door.Watch(pb.Empty()))
        for watch in watches:
            watch.cancel()
        wait_until(lambda: not daemon.store.watchers._queues, "a subscription outlives its reader")
        one_more = door.Watch(pb.Empty())
        wait_until(lambda: daemon.store.watchers._queues, "the door stays shut")
        one_more.cancel()


def test_a_watcher_that_does_not_read_loses_changes_and_delays_no_client(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    watcher = daemon.store.watchers.add()
    for number in range(watcher.maxsize):
        watcher.put_nowait(number)
    session.open_file(checkpoint("m")).close()
    assert daemon.store.counters["watch_events_lost"] == 3
    daemon.store.watchers.remove(watcher)
    daemon.store.watchers.remove(watcher)
