"""Views: what the store shows, as messages of the control door."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trims.core.place import CPU
from trims.core.replica import ReplicaId, State
from trims.core.residency.events import Changed
from trims.daemon import views
from trims.daemon.budget import Budget
from trims.daemon.clients import Connection
from trims.store.read_model import LoadView, ReplicaView, StoreView, TierView
from trims.wire import trims_pb2 as pb
from trims.wire.peer import Peer

SEEN = ReplicaView(
    id=ReplicaId("a" * 64, CPU, 3),
    state=State.SEALED,
    nbytes=40,
    leases=3,
    waiters=2,
    pinned=True,
    cost_s=1.5,
    uses=7,
    idle_s=0.0,
    keep_left_s=None,
    digest="d" * 64,
    location="trims-1.a.d",
    device="",
    names=("bert", "m"),
    leases_by_session={5: 1, 4: 2},
    story=("absent -> sealed",),
)


def a_client(number: int) -> Connection:
    sock: Any = None
    return Connection(number, sock, Peer(1000 + number, 7, 7), agent=f"agent {number}")


def test_a_replica_is_told_with_all_its_figures() -> None:
    told = views.replica(SEEN, [])
    for field in ("nbytes", "leases", "waiters", "pinned", "cost_s", "uses", "digest", "location", "device"):
        assert getattr(told, field) == getattr(SEEN, field)
    assert (told.key, told.place, told.state, told.generation) == ("a" * 64, "cpu", "sealed", 3)
    assert (list(told.names), list(told.story)) == (["bert", "m"], ["absent -> sealed"])


@pytest.mark.parametrize("left_s", [None, 0.0, 2.5])
def test_the_end_of_keep_alive_is_told_only_if_there_is_one(left_s: float | None) -> None:
    told = views.replica(replace(SEEN, keep_left_s=left_s), [])
    assert told.HasField("keep_left_s") is (left_s is not None)
    assert told.keep_left_s == (left_s or 0.0)


def test_holders_come_by_session_and_one_that_just_went_has_no_process() -> None:
    told = views.replica(SEEN, [a_client(4), a_client(9)])
    assert [(it.session, it.leases, it.pid, it.uid, it.agent) for it in told.holders] == [
        (4, 2, 1004, 7, "agent 4"),
        (5, 1, 0, 0, ""),
    ]


def test_the_figures_of_the_store_come_with_devices_and_limits_if_they_are_asked_for() -> None:
    whole = StoreView({"opens": 3}, (TierView(CPU, 100, 60, 2, 1, "lru"),), 1, 20, 2, draining=False)
    read: Any = SimpleNamespace(whole=lambda: whole)
    devices: Any = SimpleNamespace(look=lambda tiers: [pb.Device(place="gpu:0")] * len(tiers), off="no driver")
    plain = views.stats(read, 4, 9.5)
    (tier,) = plain.tiers
    assert (tier.place, tier.capacity_bytes, tier.charged_bytes, tier.replicas, tier.policy) == (
        "cpu",
        100,
        60,
        2,
        "lru",
    )
    assert (plain.counters["opens"], plain.sessions, plain.leases, plain.uptime_s) == (3, 4, 1, 9.5)
    assert (plain.unverified_bytes, plain.images, plain.max_files, list(plain.devices)) == (20, 2, 0, [])
    full = views.stats(read, 4, 9.5, devices, Budget(1000, 400, 408))
    assert ([it.place for it in full.devices], full.gpu_off) == (["gpu:0"], "no driver")
    assert (full.max_files, full.max_sessions, full.max_images) == (1000, 400, 408)


def test_a_change_is_told_with_the_names_of_its_image() -> None:
    changed = Changed(at_s=1.0, key="a", place=CPU, generation=3, old=State.QUEUED, new=State.FILLING, why="room found")
    told = views.change(changed, ["bert"])
    assert (told.key, told.place, told.old, told.new, told.generation) == ("a", "cpu", "queued", "filling", 3)
    assert (told.why, list(told.names)) == ("room found", ["bert"])


def test_the_progress_of_a_load_is_told_in_bytes() -> None:
    told = views.load_progress(LoadView("filling", 30, 40))
    assert (told.phase, told.done_bytes, told.total_bytes, told.done) == ("filling", 30, 40, False)
