"""Faults that once wedged, lost or stalled a store, each put to a real daemon. docs/faults.md names these tests."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3
import pytest
from looking import WAIT_S, Asker, error_of, nothing_is_left, restart, states, wait_until
from trims_client import connect

from trims.core.errors import (
    ArtifactError,
    CapacityError,
    DeadlineError,
    DrainingError,
    InUseError,
    LostPeerError,
    ManifestError,
    ModelNotFoundError,
    NotSupportedError,
    TooLargeError,
    TrimsError,
)
from trims.core.place import CPU, DISK, GPU, Place
from trims.store import catalog as catalog_module
from trims.store.pending_requests import Granted, Pending
from trims.store.resolve import file_digests, hashing, resolver
from trims.testing.control import control
from trims.tiers.cpu import CpuTier
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.core.replica import ReplicaId
    from trims.daemon.main import Daemon
    from trims.store.fill.plans import Plan
    from trims.store.pending_requests import Outcome
    from trims.tiers.base import Extent


@pytest.fixture
def asker(daemon: Daemon) -> Iterator[Asker]:
    made = Asker(daemon)
    yield made
    made.end()


def register(daemon: Daemon, name: str, path: Path, **residency: object) -> None:
    with control(str(daemon.config.runtime_dir)) as door:
        manifest = f"{{name: {name}, artifact: {{path: {path}}}, residency: {residency!r}}}".replace("True", "true")
        door.Register(pb.RegisterRequest(manifest_yaml=manifest, replace=True))


def unregister(daemon: Daemon, name: str) -> None:
    with control(str(daemon.config.runtime_dir)) as door:
        door.Unregister(pb.NameRequest(name=name))


def lose_catalog(daemon: Daemon) -> None:
    """Remove the catalog of a daemon that has ended."""
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
        (daemon.config.state_dir / name).unlink(missing_ok=True)


def assert_opens(daemon: Daemon, name: str) -> None:
    asker = Asker(daemon)
    assert isinstance(asker.open(name, CPU), Granted)
    asker.end()


def key_of(daemon: Daemon, name: str) -> str:
    return daemon.store.resolver.resolve(name).key


# -- pins ----------------------------------------------------------------------------------------------------------


# fault (orders): a pin at a place without a tier -> `not_supported` with the tiers there are; a missing device's pin
# waits for it
@pytest.mark.parametrize("pinned", [True, False])
def test_a_pin_at_a_place_without_a_tier_is_refused_and_not_kept(
    daemon: Daemon, serve: Callable[..., Daemon], checkpoint: Callable[..., Path], pinned: bool
) -> None:
    register(daemon, "m", checkpoint("m"))
    daemon.store.load("m").result(WAIT_S)
    with pytest.raises(NotSupportedError, match="no tier gpu:0; it has cpu, disk"):
        daemon.store.pin("m", GPU, pinned=pinned)
    assert daemon.catalog.pins() == []
    assert_opens(restart(daemon, serve), "m")


def test_a_manifest_that_pins_at_a_missing_place_is_refused_and_wedges_nothing(
    daemon: Daemon, asker: Asker, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("m"), pin=True, place="gpu")
    assert isinstance(error_of(asker.ask("m", None)), NotSupportedError)
    assert daemon.catalog.pins() == []
    assert_opens(restart(daemon, serve), "m")


def test_a_pin_at_a_device_that_is_gone_is_kept_and_starts_no_trouble(
    daemon: Daemon, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("m"))
    daemon.store.load("m").result(WAIT_S)
    daemon.catalog.pin("m", "gpu:0", pinned=True)
    second = restart(daemon, serve)
    assert_opens(second, "m")
    assert second.catalog.pins() == [("m", "gpu:0")], "kept for when the device is back"


# fault (orders): `pin: true`, opened elsewhere or unpinned -> pinned at its own place only; the unpin stays
def test_a_manifest_pins_only_at_its_own_place(daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]) -> None:
    register(daemon, "m", checkpoint("m"), pin=True)
    asker.open("m", DISK)
    assert daemon.catalog.pins() == [("m", "cpu")]


def test_an_unpin_outlives_the_next_open_and_the_next_daemon(
    daemon: Daemon, asker: Asker, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("m"), pin=True)
    asker.open("m")
    daemon.store.pin("m", CPU, pinned=False)
    asker.open("m")
    assert not daemon.store.residency.capacity.pins
    second = restart(daemon, serve)
    assert_opens(second, "m")
    assert not second.store.residency.capacity.pins


def test_a_pin_follows_the_name_to_its_new_image(daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]) -> None:
    register(daemon, "m", checkpoint("a"))
    asker.open("m")
    daemon.store.pin("m", CPU, pinned=True)
    register(daemon, "m", checkpoint("b"))
    granted = asker.open("m")
    assert daemon.store.residency.capacity.pins == {(granted.key, CPU)}


# -- measurements --------------------------------------------------------------------------------------------------


# fault (orders): a copy overtakes a conversion; completions come late, twice, out of order -> nothing; records stay
# correct
def test_a_conversion_that_a_copy_overtakes_fails_no_request(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened at disk, then at cpu while its conversion for cpu is planned: the copy from disk comes first."""
    plans, go_on, planning = daemon.store.runner._plans, threading.Event(), threading.Event()
    real = plans.measure

    def measure(replica: ReplicaId, plan: Plan) -> int:
        if replica.place == CPU:
            planning.set()
            assert go_on.wait(WAIT_S)
        return real(replica, plan)

    monkeypatch.setattr(plans, "measure", measure)
    path = checkpoint("m")
    first = [asker.ask(path, CPU) for _ in range(15)]
    assert planning.wait(WAIT_S)
    on_disk = asker.ask(path, DISK)
    second = [asker.ask(path, CPU) for _ in range(15)]
    on_disk.result(WAIT_S)
    assert all(isinstance(pending.result(WAIT_S), Granted) for pending in first + second)
    go_on.set()
    asker.end()
    wait_until(lambda: len(plans) == 0, "the overtaken plan stays")
    nothing_is_left(daemon)


# fault (orders): a planned conversion waits, with one converter -> other models are converted meanwhile
def test_a_planned_conversion_that_waits_for_room_holds_no_converter(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=150_000, converters=1)
    reader, asker = Asker(daemon), Asker(daemon)
    reader.open(checkpoint("held", nbytes=100_000))
    waiting = asker.ask(checkpoint("large", nbytes=100_000), CPU, deadline_s=WAIT_S)
    wait_until(lambda: len(daemon.store.runner._plans) == 1 and daemon.store.residency.waiters.by_ticket, "not planned")
    assert isinstance(asker.open(checkpoint("small"), DISK), Granted)
    reader.end()
    assert isinstance(waiting.result(WAIT_S), Granted)
    asker.end()


def test_a_plan_that_was_dropped_for_others_is_made_again_when_there_is_room(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=150_000, converters=1)
    reader, asker = Asker(daemon), Asker(daemon)
    reader.open(checkpoint("held", nbytes=100_000))
    waiting = [asker.ask(checkpoint(name, nbytes=70_000), CPU, deadline_s=WAIT_S) for name in "abcd"]
    queued = daemon.store.residency.replicas
    wait_until(lambda: sum(each.measured for each in queued.values()) == 5, "not all were measured")
    reader.end()
    wait_until(lambda: sum(pending.done(0) for pending in waiting) == 2, "room for two, and not two were served")
    assert all(isinstance(pending.result(0), Granted) for pending in waiting if pending.done(0))
    asker.end()
    nothing_is_left(daemon)


# fault (orders): an open without deadline behind one that waits -> served if it fits, else `capacity`; passing is
# bounded
def test_an_open_without_a_deadline_is_answered_behind_a_patient_one(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=200_000)
    reader, asker = Asker(daemon), Asker(daemon)
    reader.open(checkpoint("held", nbytes=100_000))
    waiting = asker.ask(checkpoint("large", nbytes=150_000), CPU, deadline_s=WAIT_S)
    lines = daemon.store.residency._admission.room.lines
    wait_until(lambda: lines[CPU].first() is not None, "it does not stand in line yet")
    assert isinstance(asker.open(checkpoint("small", nbytes=20_000)), Granted)
    assert isinstance(error_of(asker.ask(checkpoint("middling", nbytes=120_000))), CapacityError)
    assert not waiting.done(0)
    reader.end()
    asker.end()


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def held_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Reading the file `a.safetensors` stands still: (entered, go_on)."""
    entered, go_on, real = threading.Event(), threading.Event(), hashing.read_digests

    def read(file: Path, *how: Any) -> hashing.Digests:
        if file.name == "a.safetensors":
            entered.set()
            assert go_on.wait(WAIT_S)
        return real(file, *how)

    monkeypatch.setattr(hashing, "read_digests", read)
    yield entered, go_on
    go_on.set()


# fault (orders): a manifest is replaced or removed while its name is resolved -> later opens get the new one, or
# `model_not_found`
def test_a_manifest_replaced_during_a_lookup_counts_for_all_later_opens(
    daemon: Daemon,
    asker: Asker,
    checkpoint: Callable[..., Path],
    held_read: tuple[threading.Event, threading.Event],
) -> None:
    entered, go_on = held_read
    register(daemon, "m", checkpoint("a"))
    before = asker.ask("m")
    assert entered.wait(WAIT_S)
    register(daemon, "m", checkpoint("b"))
    afterwards = asker.open("m")
    go_on.set()
    before.result(WAIT_S)
    expected = key_of(daemon, f"file:{checkpoint('b')}")
    assert afterwards.key == expected
    assert asker.open("m").key == expected


def test_a_name_removed_during_a_lookup_does_not_open_afterwards(
    daemon: Daemon,
    asker: Asker,
    checkpoint: Callable[..., Path],
    held_read: tuple[threading.Event, threading.Event],
) -> None:
    entered, go_on = held_read
    register(daemon, "m", checkpoint("a"), pin=True)
    before = asker.ask("m")
    assert entered.wait(WAIT_S)
    unregister(daemon, "m")
    assert isinstance(error_of(asker.ask("m")), ModelNotFoundError)
    go_on.set()
    assert isinstance(error_of(before), ModelNotFoundError)
    assert isinstance(error_of(asker.ask("m")), ModelNotFoundError)
    assert (daemon.catalog.key_of("m"), daemon.catalog.pins()) == (None, [])


# fault (orders): a file changes between its hash and its conversion -> the new bytes, or `artifact_changed`; no image
# differs from its key
def test_a_file_that_changes_between_its_hash_and_its_conversion_is_read_again(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this the bytes of the new file would stand under the key of the old one, for good."""
    path, plans = checkpoint("m"), daemon.store.runner._plans
    other = checkpoint("other", nbytes=8192).read_bytes()
    real, changed = plans.measure, []

    def measure(replica: ReplicaId, plan: Plan) -> int:
        if not changed:
            changed.append(path.write_bytes(other))
        return real(replica, plan)

    monkeypatch.setattr(plans, "measure", measure)
    granted = asker.open(path)
    assert granted.key == key_of(daemon, f"file:{path}")
    assert granted.nbytes > 8192


# -- blocking ------------------------------------------------------------------------------------------------------


@pytest.fixture
def hung_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Looking at a file whose name begins with `hung` stands still, as on a dead mount: (entered, go_on)."""
    entered, go_on, real = threading.Event(), threading.Event(), catalog_module.identity_of

    def look(path: Path | str) -> str:
        if "/hung" in str(path):
            entered.set()
            assert go_on.wait(WAIT_S)
        return real(path)

    monkeypatch.setattr(catalog_module, "identity_of", look)
    monkeypatch.setattr(resolver, "_TRUST_S", 0.0)
    yield entered, go_on
    go_on.set()


# fault (orders): a file system hangs -> its models' opens wait for their deadlines; all else is served
def test_a_file_that_cannot_be_looked_at_delays_no_other_model(
    daemon: Daemon,
    asker: Asker,
    checkpoint: Callable[..., Path],
    hung_look: tuple[threading.Event, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, go_on = hung_look
    go_on.set()
    hung = [checkpoint(f"hung{number}") for number in range(20)]
    for path in hung:
        asker.open(path)
    from trims.store.resolve import mounts

    monkeypatch.setattr(mounts._mounts, "point_of", lambda path: "/dead" if "/hung" in path else "/")
    for path in hung:  # what is remembered of them says that they lie on a mount of their own
        known = daemon.store.resolver._known[f"file:{path}"]
        daemon.store.resolver._known[f"file:{path}"] = resolver.replace(known, mount="/dead")
    go_on.clear()
    waiting = [asker.ask(path) for path in hung]
    assert entered.wait(WAIT_S)
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(checkpoint("well")).close()
        session.open_file(checkpoint("well")).close()
    assert not any(pending.done(0) for pending in waiting)
    go_on.set()
    assert all(isinstance(pending.result(WAIT_S), Granted) for pending in waiting)


@pytest.fixture
def long_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files of more than 50 KB are long, and reading them takes until the event is set, or no request wants it."""
    go_on, real = threading.Event(), hashing.read_digests

    def read(file: Path, part: hashing.Part, reading: hashing.Reading) -> hashing.Digests:
        while "long" in file.name and reading.wanted() and not go_on.wait(0.01):
            continue
        return real(file, part, reading)

    monkeypatch.setattr(file_digests, "_HASH_HERE_BYTES", 50_000)
    monkeypatch.setattr(hashing, "read_digests", read)
    monkeypatch.setattr(resolver, "_TRUST_S", 0.0)
    yield go_on
    go_on.set()


# fault (damage): many large files, first opened at once -> hashes take turns of 256 MiB, four at a time; known models
# go first
def test_long_files_that_are_hashed_hold_up_neither_short_ones_nor_known_models(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], long_reads: threading.Event
) -> None:
    known = checkpoint("known", nbytes=1000)
    assert isinstance(asker.open(known), Granted)
    waiting = [asker.ask(checkpoint(f"long{number}", nbytes=100_000)) for number in range(40)]
    wait_until(lambda: len(daemon.store._opens.lookups._looks) == 40, "all are looked into")
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(known, deadline_s=WAIT_S).close()
        session.open_file(checkpoint("short", nbytes=1000), deadline_s=WAIT_S).close()
    assert not any(pending.done(0) for pending in waiting)
    long_reads.set()
    assert all(isinstance(pending.result(WAIT_S), Granted) for pending in waiting)


def hash_workers() -> int:
    return sum("hash" in each.name for each in threading.enumerate())


def test_a_file_is_not_hashed_for_a_client_that_is_gone(
    daemon: Daemon, checkpoint: Callable[..., Path], long_reads: threading.Event
) -> None:
    gone, stays = Asker(daemon), Asker(daemon)
    shared, own = checkpoint("long-shared", nbytes=100_000), checkpoint("long-own", nbytes=100_000)
    pending = [gone.ask(own), gone.ask(shared), stays.ask(shared)]
    looks = daemon.store._opens.lookups._looks
    wait_until(lambda: hash_workers() == 2 and all(look.running for look in looks.values()), "both are read")
    gone.end()
    left = [(f"file:{shared}", True)]
    wait_until(lambda: list(daemon.store._opens.lookups._looks) == left, "what nobody wants is read no further")
    wait_until(lambda: hash_workers() <= 2, "workers are idle again")
    again = stays.ask(own)
    long_reads.set()
    assert isinstance(pending[2].result(WAIT_S), Granted)
    assert isinstance(again.result(WAIT_S), Granted)
    assert isinstance(error_of(pending[0]), LostPeerError)
    assert isinstance(error_of(pending[1]), LostPeerError)
    assert daemon.store._opens.lookups._by_ticket == daemon.store._opens.lookups._by_session == {}
    stays.end()


# fault (capacity): a deadline passes while a file is hashed that no other request waits for -> `deadline`; the next
# open goes on from there
def test_a_hash_ends_once_the_deadline_of_its_only_request_has_passed(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], long_reads: threading.Event
) -> None:
    path = checkpoint("long", nbytes=100_000)
    lookups, late = daemon.store._opens.lookups, asker.ask(path, deadline_s=30.0)
    wait_until(lambda: hash_workers() and all(look.running for look in lookups._looks.values()), "it is read")
    lookups.expire(math.inf)
    assert isinstance(error_of(late), DeadlineError)
    wait_until(lambda: not lookups._looks, "its worker has ended")
    assert (lookups._by_session, lookups._by_ticket) == ({}, {})
    assert daemon.store.resolver.remembered(f"file:{path}") is None
    long_reads.set()
    assert isinstance(asker.open(path), Granted)


def huge(folder: Path, name: str, nbytes: int) -> Path:
    """A sparse file with a normal header."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}).encode()
    path = folder / f"{name}.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + nbytes)
    return path


# fault (capacity): a file that can never fit, by its header -> `too_large`, `quota`, before it is read
@pytest.mark.parametrize("place", [CPU, DISK], ids=str)
def test_a_terabyte_that_fits_nowhere_is_refused_before_it_is_read(
    place: Place, daemon: Daemon, asker: Asker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = huge(folder, "huge", 1 << 40), list[Path]()
    monkeypatch.setattr(hashing, "read_digests", lambda file, *how: read.append(file))
    assert isinstance(error_of(asker.ask(path, place)), TooLargeError)
    with pytest.raises(TooLargeError):
        daemon.store.load(f"file:{path}", place).result(WAIT_S)
    with pytest.raises(TooLargeError):
        daemon.store.pin(f"file:{path}", place, pinned=True)
    assert read == []


# fault (capacity): files whose size takes for ever to learn -> other opens wait for one turn of each
def test_two_files_that_take_for_ever_to_read_hold_up_no_other_open(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formats whose headers do not state the size, so that nothing but their turns is left to bound them."""
    monkeypatch.setattr("trims.store.resolve.artifacts.least_image_bytes", lambda artifact: 0)
    monkeypatch.setattr(hashing, "TURN_BYTES", 16 << 20)
    other = Asker(daemon)
    hogs = [asker.ask(huge(folder, f"huge{number}", 1 << 40)) for number in range(12)]
    wait_until(lambda: hashed_bytes(daemon) > 0, "they are read")
    assert isinstance(other.open(checkpoint("a", nbytes=4 << 20)), Granted)
    assert isinstance(asker.open(checkpoint("b", nbytes=4 << 20)), Granted)
    assert not any(hog.done(0) for hog in hogs)
    asker.end()
    wait_until(lambda: not daemon.store._opens.lookups._looks, "they are read no further")
    other.end()


def hashed_bytes(daemon: Daemon) -> int:
    return sum(look.progress.read_bytes for look in list(daemon.store._opens.lookups._looks.values()))


# fault (damage): YAML aliases for billions of values -> `bad_manifest`
def test_a_manifest_that_stands_for_billions_of_values_stalls_nothing(daemon: Daemon) -> None:
    lines = ["a0: &a0 x", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)), "name: *a29"]
    request = pb.RegisterRequest(manifest_yaml="\n".join(lines))
    with pytest.raises(ManifestError, match="aliases written out"), control(str(daemon.config.runtime_dir)) as door:
        door.Register(request)


def test_a_daemon_ends_although_a_look_hangs(
    daemon: Daemon, checkpoint: Callable[..., Path], hung_look: tuple[threading.Event, threading.Event]
) -> None:
    entered, go_on = hung_look
    asker = Asker(daemon)
    pending = asker.ask(checkpoint("hung"))
    assert entered.wait(WAIT_S)
    daemon.ask_to_end()
    daemon.stop()
    assert isinstance(error_of(pending), TrimsError)
    go_on.set()
    wait_until(lambda: not any("resolve" in each.name for each in threading.enumerate()), "the look goes on")


# fault (orders): another process locks the catalog -> opens go on; `pin` and `rm` wait, then `in_use`
def test_a_locked_catalog_delays_no_open(daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]) -> None:
    other = sqlite3.connect(daemon.config.state_dir / "catalog.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with connect(daemon.config.runtime_dir) as session:
            for name in "abc":
                session.open_file(checkpoint(name)).close()
        names = [f"file:{checkpoint(name)}" for name in "abc"]
        assert all(daemon.catalog.key_of(name) for name in names)
    finally:
        other.execute("ROLLBACK")
        other.close()
    daemon.catalog.close()
    written = sqlite3.connect(daemon.config.state_dir / "catalog.db")
    assert {row[0] for row in written.execute("SELECT name FROM names")} == set(names)
    written.close()


# -- restarts ------------------------------------------------------------------------------------------------------


# fault (orders): the catalog is lost or damaged, or the daemon dies before it is written
def test_a_lost_catalog_costs_no_image(
    daemon: Daemon, asker: Asker, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    paths = [checkpoint(name) for name in "abc"]
    for path in paths:
        asker.open(path)
        put_on_disk_too(daemon, path)
    images = {extent.label for extent in daemon.store.runner.extents().values()}
    daemon.ask_to_end()
    daemon.stop()
    lose_catalog(daemon)
    second = serve()
    again = Asker(second)
    assert all(isinstance(again.open(path), Granted) for path in paths)
    labels = lambda: {extent.label for extent in second.store.runner.extents().values()}  # noqa: E731
    wait_until(lambda: labels() == images, "the images on disk are verified behind")
    assert second.store.counters["fills.cpu"] == 0
    again.end()


def put_on_disk_too(daemon: Daemon, path: Path) -> None:
    daemon.store.load(f"file:{path}", DISK).result(WAIT_S)


def test_a_restart_lends_at_once_what_a_record_vouches_for_and_reads_it_behind(
    daemon: Daemon, asker: Asker, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m", nbytes=1 << 20)
    asker.open(path)
    second = restart(daemon, serve)
    assert (second.store.counters["adopted"], second.store.counters["adopted_unverified"]) == (1, 0)
    assert states(second) == {"cpu": "sealed"}
    wait_until(lambda: second.store.read.whole().unverified_bytes == 0, "never read again")
    (extent,) = second.store.runner.extents().values()
    assert extent.fresh


# fault (damage): a segment is truncated or flipped
def test_a_segment_changed_between_two_daemons_is_never_lent(
    daemon: Daemon, asker: Asker, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m", nbytes=1 << 20)
    granted = asker.open(path)
    (extent,) = daemon.store.runner.extents().values()
    daemon.ask_to_end()
    daemon.stop()
    segment = f"/dev/shm/{extent.label}"
    with open(segment, "r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff" * 8)
    second = serve()
    assert second.store.counters["adopted_unverified"] == 1
    again = Asker(second)
    assert again.open(path).digest == granted.digest
    assert second.store.counters["fills.cpu"] == 1
    again.end()
    nothing_is_left(second)


def test_an_open_waits_for_the_hash_of_its_own_image_only(
    daemon: Daemon,
    asker: Asker,
    serve: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing vouches for what a daemon finds without its catalog; the images are hashed one after the other."""
    paths = [checkpoint(name) for name in "abc"]
    keys = {asker.open(path).key: path for path in paths}
    daemon.ask_to_end()
    daemon.stop()
    lose_catalog(daemon)
    go_on, entered, held, real = threading.Event(), threading.Event(), [], CpuTier.verify

    def verify(tier: CpuTier, extent: Extent, *more: object, **named: object) -> None:
        if not held:
            held.append(extent.key)
            entered.set()
            assert go_on.wait(WAIT_S)
        real(tier, extent, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(CpuTier, "verify", verify)
    second = serve()
    assert entered.wait(WAIT_S)
    again = Asker(second)
    assert all(isinstance(again.open(path), Granted) for key, path in keys.items() if key not in held)
    go_on.set()
    assert isinstance(again.open(keys[held[0]]), Granted)
    again.end()


@pytest.fixture
def found(
    daemon: Daemon,
    asker: Asker,
    serve: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Daemon, str, threading.Event]]:
    """A daemon that found an image nothing vouches for, its key, and what lets the image's verification go on."""
    key, go_on, real = asker.open(checkpoint("m")).key, threading.Event(), CpuTier.verify
    daemon.ask_to_end()
    daemon.stop()
    lose_catalog(daemon)

    def verify(tier: CpuTier, extent: Extent, *more: object, **named: object) -> None:
        assert go_on.wait(WAIT_S)
        real(tier, extent, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(CpuTier, "verify", verify)
    yield serve(), key, go_on
    go_on.set()


# fault (orders): the catalog is lost or damaged, or the daemon dies before it is written -> images are verified and
# adopted; pins are lost, a tenant's leases are not taken up
def test_a_lease_on_an_image_that_is_still_verified_is_taken_up_once_it_was(
    found: tuple[Daemon, str, threading.Event],
) -> None:
    """Without this a reader whose daemon was killed before the catalog was written would never have its lease back."""
    second, key, go_on = found
    again = Asker(second)

    for _ in range(3):
        refused: list[Outcome] = []
        second.store.resume(again.session, key, CPU, refused.append)
        assert isinstance(refused[0], InUseError), "at once: a client asks for many, one after the other"
        assert "was left at cpu by an earlier daemon and is being verified; ask again soon" in str(refused[0])
    go_on.set()
    wait_until(lambda: second.store.runner.unverified_bytes == 0, "it was not verified")
    granted = Pending()
    second.store.resume(again.session, key, CPU, granted.set)
    assert isinstance(granted.result(WAIT_S), Granted)
    again.end()


def test_what_is_resumed_is_verified_before_what_was_found_earlier(
    daemon: Daemon,
    asker: Asker,
    serve: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {asker.open(checkpoint(name)).key for name in "abcd"}
    daemon.ask_to_end()
    daemon.stop()
    lose_catalog(daemon)
    go_on, verified, real = threading.Event(), [], CpuTier.verify

    def verify(tier: CpuTier, extent: Extent, *more: object, **named: object) -> None:
        verified.append(extent.key)
        if len(verified) == 1:
            assert go_on.wait(WAIT_S)
        real(tier, extent, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(CpuTier, "verify", verify)
    second = serve()
    wait_until(lambda: verified, "none is verified")
    again, last = Asker(second), list(second.store.runner._to_verify._jobs)[-1].key
    second.store.resume(again.session, last, CPU, lambda _: None)
    go_on.set()
    wait_until(lambda: len(verified) == len(keys), "some were not verified")
    assert verified[1] == last
    again.end()


# fault (daemon): restart under readers
def test_a_lease_taken_up_after_a_restart_leaves_keep_alive_as_stated(
    daemon: Daemon, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("m"), keep_alive_s=40)
    asker = Asker(daemon)
    key = asker.open("m").key
    second = restart(daemon, serve)
    again, granted = Asker(second), []
    second.store.resume(again.session, key, CPU, granted.append)
    assert isinstance(granted[0], Granted)
    replica = second.store.residency.find(key, CPU)
    assert replica is not None
    assert replica.keep_alive_s == 40
    again.end()


def test_lease_numbers_of_two_daemons_are_never_the_same(
    daemon: Daemon, asker: Asker, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    first = {asker.open(checkpoint("m")).lease for _ in range(5)}
    again = Asker(restart(daemon, serve))
    assert not first & {again.open(checkpoint("m")).lease for _ in range(5)}
    again.end()


# -- the rest ------------------------------------------------------------------------------------------------------


# fault (daemon): a draining daemon is asked to load -> `draining`; existing leases stay
def test_a_draining_daemon_refuses_loads_and_prefetches(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    daemon.store.drain()
    assert isinstance(error_of(daemon.store.load(f"file:{checkpoint('m')}")), DrainingError)
    assert not daemon.store.residency.replicas


# fault (orders): an image cannot be opened at a start, or memory not given back
def test_memory_that_cannot_be_given_back_is_tried_again(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, failed = daemon.store.tiers[CPU], []
    real = tier.free

    def free(extent: object) -> None:
        if not failed:
            failed.append(extent)
            raise OSError(5, "Input/output error")
        real(extent)  # type: ignore[arg-type]

    monkeypatch.setattr(tier, "free", free)
    path = checkpoint("m")
    asker.open(path)
    asker.end()
    daemon.store.evict(f"file:{path}", CPU)
    assert failed
    wait_until(lambda: not daemon.store.residency.replicas, "it is freed no more")
    nothing_is_left(daemon)


def test_an_artifact_whose_path_is_impossible_is_told_as_such(asker: Asker) -> None:
    error = error_of(asker.ask("file:/" + "x" * 4000))
    assert isinstance(error, ArtifactError)
    assert "File name too long" in str(error)


# fault (orders): a program writes to an artifact through a shared mapping -> the old bytes until the kernel writes
# back; with `always_hash` the new ones
def test_always_hash_finds_what_was_written_through_a_mapping(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write through a shared mapping changes no time until the kernel writes the pages back."""
    monkeypatch.setattr(resolver, "_TRUST_S", 0.0)
    daemon, path = serve(always_hash=True), checkpoint("m")
    asker = Asker(daemon)
    before, identity = asker.open(path), catalog_module.identity_of(path)
    monkeypatch.setattr(catalog_module, "identity_of", lambda _: identity)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert asker.open(path).key != before.key
    asker.end()


# -- what a reader with fresh eyes found ---------------------------------------------------------------------------


def damage(path: str, how: str) -> None:
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        if how == "truncated":
            file.truncate(5000)
        else:
            file.seek(-8, 2)
            file.write(b"\xff" * 8)
    os.chmod(path, 0o400)


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_a_disk_image_that_was_touched_is_not_lent_at_disk_either(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], how: str
) -> None:
    path = checkpoint("m", nbytes=20_000)
    first = asker.open(path, DISK)
    asker.end()
    (extent,) = daemon.store.runner.extents().values()
    damage(extent.label, how)
    again = Asker(daemon)
    second = again.open(path, DISK)
    assert (second.digest, second.generation) != (first.digest, first.generation)
    assert second.digest == first.digest
    assert os.fstat(second.fd).st_size == second.nbytes
    assert daemon.store.counters["broken"] == 1
    again.end()


@pytest.mark.parametrize("catalog", ["there", "lost"])
def test_a_disk_image_changed_between_two_daemons_is_not_lent_at_disk(
    daemon: Daemon, asker: Asker, serve: Callable[..., Daemon], checkpoint: Callable[..., Path], catalog: str
) -> None:
    path = checkpoint("m", nbytes=20_000)
    asker.open(path, DISK)
    (extent,) = daemon.store.runner.extents().values()
    daemon.ask_to_end()
    daemon.stop()
    damage(extent.label, "flipped")
    if catalog == "lost":
        lose_catalog(daemon)
    second = serve()
    again = Asker(second)
    granted = again.open(path, DISK)
    assert blake3.blake3(os.pread(granted.fd, granted.nbytes, 0)).hexdigest() == granted.digest
    again.end()


# fault (converters): all converters hang -> only opens that need one wait
def test_what_needs_no_converter_waits_for_none(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = serve(converters=1)
    busy, go_on = threading.Event(), threading.Event()

    def stuck() -> None:
        busy.set()
        assert go_on.wait(WAIT_S)

    daemon.store.runner._workers.converters.submit(stuck)
    assert busy.wait(WAIT_S)
    asker = Asker(daemon)
    assert isinstance(asker.open(checkpoint("m")), Granted)
    go_on.set()
    asker.end()


def test_a_pin_moves_along_though_the_model_was_never_opened_before(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("a"))
    daemon.store.pin("m", CPU, pinned=True)
    register(daemon, "m", checkpoint("b"))
    granted = asker.open("m")
    assert daemon.store.residency.capacity.pins == {(granted.key, CPU)}
