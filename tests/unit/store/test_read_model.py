"""The store for reading: every view is of one moment, and reports what the books and the memory say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S, Asker, extent_at

from trims.core.errors import ArtifactError, CapacityError
from trims.core.place import CPU, DISK
from trims.core.replica import ReplicaId
from trims.store import read_model as module

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.errors import TrimsError
    from trims.daemon.main import Daemon


def test_replicas_come_fastest_place_first_then_largest_first(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE", 2)
    for name, nbytes in (("small", 4096), ("large", 40_000), ("middle", 8192)):
        for place in (DISK, CPU):
            daemon.store.load(f"file:{checkpoint(name, nbytes=nbytes)}", place).result(WAIT_S)
    views = daemon.store.read.replicas()
    assert [str(view.id.place) for view in views] == ["cpu"] * 3 + ["disk"] * 3
    for here in (views[:3], views[3:]):
        assert [len(view.names) for view in here] == [1, 1, 1]
        assert [view.nbytes for view in here] == sorted((view.nbytes for view in here), reverse=True)


def test_a_view_of_a_leased_replica_tells_its_holders_and_where_its_bytes_are(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]
) -> None:
    path, other = checkpoint("m"), Asker(daemon)
    granted, *_ = [each.open(path) for each in (asker, asker, other)]
    view = daemon.store.read.replica(granted.key, CPU)
    assert view is not None
    assert (view.leases, view.leases_by_session, view.uses) == (3, {asker.session: 2, other.session: 1}, 3)
    assert (view.idle_s, view.names, view.digest) == (0.0, (f"file:{path}",), granted.digest)
    assert (view.location, view.device) == (extent_at(daemon, CPU).label, "")
    assert view.story == ()
    (told,) = daemon.store.read.replicas_of(module.NameView(granted.key), story=True)
    assert [step.split(": ")[0].split(" ", 1)[1] for step in told.story] == [
        "absent -> queued",
        "queued -> filling",
        "filling -> sealed",
    ]
    assert daemon.store.read.replica(granted.key, DISK) is None
    other.end()


def test_the_whole_sums_up_what_its_replicas_say(daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]) -> None:
    for name in ("a", "b"):
        asker.open(checkpoint(name))
    daemon.store.load(f"file:{checkpoint('a')}", DISK).result(WAIT_S)
    whole, views = daemon.store.read.whole(), daemon.store.read.replicas()
    tiers = {str(tier.place): tier for tier in whole.tiers}
    assert {name: tier.replicas for name, tier in tiers.items()} == {"cpu": 2, "disk": 1, "file": 0, "cloud": 0}
    for name, tier in tiers.items():
        assert tier.charged_bytes == sum(view.nbytes for view in views if str(view.id.place) == name)
    assert [tiers["cpu"].leases, tiers["disk"].leases, whole.leases] == [2, 0, 2]
    assert (whole.images, whole.unverified_bytes, whole.draining) == (3, 0, False)
    whole.counters["opens"] = 99  # type: ignore[index]
    assert daemon.store.read.whole().counters["opens"] == 2, "a view is a copy"


def test_what_a_name_stands_for_is_told_as_far_as_it_is_known(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    name = f"file:{checkpoint('m')}"
    assert daemon.store.read.image_of(name) == module.NameView()
    key = daemon.store.load(name).result(WAIT_S).key
    nbytes = extent_at(daemon, CPU).nbytes
    files = (Path(name.removeprefix("file:")),)
    assert daemon.store.read.image_of(name) == module.NameView(key, "safetensors", nbytes, files=files)
    daemon.store.resolver.forget(name)
    assert daemon.store.read.image_of(name) == module.NameView(key, "", nbytes)


def test_a_load_is_resolving_then_as_far_as_its_replica(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    name, read = f"file:{checkpoint('m')}", daemon.store.read
    assert read.load(name, None) == module.LoadView("resolving")
    daemon.store.load(name).result(WAIT_S)
    assert read.load(name, None) == module.LoadView("sealed")
    assert read.load(name, DISK) == module.LoadView("queued")


def test_only_this_very_replica_counts_as_sealed(daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]) -> None:
    granted = asker.open(checkpoint("m"))
    there = ReplicaId(granted.key, CPU, granted.generation)
    assert daemon.store.read.sealed() == [(there, granted.nbytes)]
    assert daemon.store.read.is_sealed(there)
    assert not daemon.store.read.is_sealed(there._replace(generation=granted.generation + 1))
    assert not daemon.store.read.is_sealed(there._replace(place=DISK))
    assert daemon.store.read.extent(there) is extent_at(daemon, CPU)


def test_every_rule_that_the_books_break_is_told_and_sound_books_tell_none(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]
) -> None:
    asker.open(checkpoint("m"))
    assert daemon.store.read.broken_invariants() == []
    books = daemon.store.residency.capacity.at
    for place in (CPU, DISK):
        books[place].charged_bytes += 1
    broken = daemon.store.read.broken_invariants()
    for place in (CPU, DISK):
        books[place].charged_bytes -= 1
    assert [rule.split(":")[0] for rule in broken] == ["cpu", "disk"]


def test_it_says_why_an_image_is_in_memory_or_not(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]
) -> None:
    read, path = daemon.store.read, checkpoint("m")
    name = f"file:{path}"
    assert read.in_memory(read.image_of(name)) == "no: it is read from no file now"
    daemon.store.load(name, DISK).result(WAIT_S)
    assert read.in_memory(read.image_of(name)) == (
        "no: one open reads it from its file; a second one soon after has it copied to memory, and "
        "`trims load --place cpu` does so now"
    )
    asker.open(path)
    assert read.in_memory(read.image_of(name)) == "yes: it is there"


FULL = CapacityError("/dev/shm is full")


@pytest.mark.parametrize(
    ("error", "passed_s", "told"),
    [
        (FULL, 1.0, "its last copy failed: /dev/shm is full (tried again by an open after"),
        (FULL, 60.0, "its last copy failed: /dev/shm is full (tried again by its next open)"),
        (ArtifactError("torn"), 1.0, "its conversion failed: torn (tried again by an open after"),
    ],
)
def test_it_says_why_the_last_copy_into_memory_failed_and_when_it_is_tried_again(
    error: TrimsError, passed_s: float, told: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    read, name = daemon.store.read, f"file:{checkpoint('m')}"
    daemon.store.load(name, DISK).result(WAIT_S)
    image, ledger = read.image_of(name), daemon.store.residency._ledger
    for _ in range(2):
        ledger.demand.opened(image.key)
    assert read.in_memory(image) == "no: its next open has it copied there"
    ledger.failures.note(image.key, error, read._clock() - passed_s)
    assert read.in_memory(image).startswith(f"no: {told}")
