"""Weights that are read from disk move to shared memory under their readers, and stay where they are if they cannot."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import WAIT_S, states, wait_until
from trims_client import connect
from trims_client.connection import watch

from trims.core.errors import TrimsError
from trims.core.place import CPU, DISK
from trims.memory import mapping

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from trims_client import Session, Weights

    from trims.daemon.main import Daemon

NBYTES = 1 << 20


@pytest.fixture(autouse=True)
def _aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Map small models as large ones are mapped, and have a thread wake more often."""
    monkeypatch.setattr(mapping, "_WORTH_BYTES", 1)
    monkeypatch.setattr(watch, "_WAKE_MS", 20)


@pytest.fixture
def on_disk(daemon: Daemon, checkpoint: Callable[..., Path]) -> Callable[..., str]:
    """A model whose image lies on disk only."""

    def make(name: str = "m", nbytes: int = NBYTES) -> str:
        daemon.registry.put({"name": name, "artifact": {"path": str(checkpoint(name, nbytes=nbytes))}}, "")
        daemon.store.load(name, DISK).result(WAIT_S)
        return name

    return make


def address_of(weights: Weights) -> int:
    return int(weights["weight"].__array_interface__["data"][0])


def files_under(address: int) -> str:
    """Return the file that the kernel has mapped at an address; empty if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, end = line.split()[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return line.split()[-1]
    return ""


def leases_at(daemon: Daemon) -> dict[str, int]:
    return {str(view.id.place): view.leases for view in daemon.store.read.replicas()}


def moves(weights: Weights) -> None:
    wait_until(lambda: weights.place == "cpu", "the weights stay on disk")


def test_weights_on_disk_move_to_memory_at_the_same_addresses(
    daemon: Daemon, session: Session, on_disk: Callable[..., str]
) -> None:
    with session.open(on_disk()) as weights:
        array = weights["weight"]
        before, address = array.copy(), address_of(weights)
        assert weights.place == "disk"
        assert "images" in files_under(address)
        daemon.store.load("m", CPU).result(WAIT_S)
        moves(weights)
        assert address_of(weights) == address
        assert "/dev/shm" in files_under(address)
        assert (array == before).all()
        wait_until(lambda: leases_at(daemon) == {"cpu": 1, "disk": 0}, "the old lease is kept")
        daemon.store.evict("m", DISK)
        assert (array == before).all()
    del array
    wait_until(lambda: leases_at(daemon) == {"cpu": 0}, "a lease is left")


def test_all_opens_of_a_session_move_with_one_lease_that_the_last_one_gives_back(
    daemon: Daemon, session: Session, on_disk: Callable[..., str]
) -> None:
    first, second = session.open(on_disk()), session.open("m")
    daemon.store.load("m", CPU).result(WAIT_S)
    moves(first)
    assert second.place == "cpu"
    wait_until(lambda: leases_at(daemon) == {"cpu": 1, "disk": 0}, "leases are left on disk")
    first.close()
    third = session.open("m")
    assert third.place == "cpu"
    second.close()
    third.close()
    wait_until(lambda: leases_at(daemon) == {"cpu": 0, "disk": 0}, "a lease is left")
    assert session._mappings.held() == []


def test_a_session_with_thousands_of_leases_is_told_once_and_moves(
    daemon: Daemon, session: Session, on_disk: Callable[..., str]
) -> None:
    many = [session.open(on_disk()), *(session.open("m") for _ in range(2000))]
    channel = session._channel
    daemon.store.load("m", CPU).result(WAIT_S)
    moves(many[0])
    assert session._channel is channel, "the connection was ended"
    assert {weights.place for weights in many} == {"cpu"}
    for weights in many:
        weights.close()
    wait_until(lambda: set(leases_at(daemon).values()) == {0}, "a lease is left")


def test_views_of_closed_weights_move_too(daemon: Daemon, session: Session, on_disk: Callable[..., str]) -> None:
    with session.open(on_disk()) as weights:
        array, address = weights["weight"], address_of(weights)
    before = array.copy()
    daemon.store.load("m", CPU).result(WAIT_S)
    wait_until(lambda: "/dev/shm" in files_under(address), "the view stays on disk")
    assert (array == before).all()
    del array
    wait_until(lambda: leases_at(daemon) == {"cpu": 0, "disk": 0}, "a lease is left")


@pytest.mark.parametrize("why", ["the session wants none", "the place was asked for", "a private copy is in use"])
def test_weights_stay_on_disk_if(why: str, daemon: Daemon, on_disk: Callable[..., str]) -> None:
    with connect(daemon.config.runtime_dir, upgrade="wants none" not in why) as session:
        place = "disk" if "asked for" in why else "auto"
        with session.open(on_disk(), place=place) as weights, session.open(on_disk("other")) as other:
            private = weights.private_raw("weight") if "private" in why else None
            for name in ("m", "other"):
                daemon.store.load(name, CPU).result(WAIT_S)
            if "wants none" not in why:
                moves(other)  # so that the first one had its turn
            else:
                wait_until(lambda: not session._mappings.upgrades, "the event is not heard")
            assert weights.place == "disk"
            assert leases_at(daemon)["disk"] >= 1
            del private
        assert session._mappings.held() == []


def test_an_explicit_open_keeps_what_others_opened_without_a_place_on_disk(
    daemon: Daemon, session: Session, on_disk: Callable[..., str]
) -> None:
    with session.open(on_disk()) as free, session.open("m", place="disk") as bound:
        daemon.store.load("m", CPU).result(WAIT_S)
        with connect(daemon.config.runtime_dir) as another, another.open("m") as new:
            assert new.place == "cpu"
        time.sleep(0.2)  # ten rounds of the watch thread
        assert (free.place, bound.place) == ("disk", "disk")


def test_a_session_that_has_the_memory_mapped_already_moves_its_other_mapping(
    daemon: Daemon, session: Session, on_disk: Callable[..., str]
) -> None:
    daemon.store.load(on_disk("n"), CPU).result(WAIT_S)  # the watch thread must not be faster than the test
    with session.open(on_disk()) as weights, session._mappings.lock:
        daemon.store.load("m", CPU).result(WAIT_S)
        again = session.open("m", place="cpu")
        assert weights.place == "disk"
    array = weights
    assert array.closed
    again.close()
    wait_until(lambda: set(leases_at(daemon).values()) == {0}, "a lease is left")
    assert session._mappings.held() == []


# fault (in place): weights move from disk to memory under readers; the daemon dies, or the image is gone -> nothing;
# each view stays at its address, or stays on disk
def test_readers_never_see_a_wrong_byte_while_memory_is_exchanged_under_them(
    daemon: Daemon, on_disk: Callable[..., str]
) -> None:
    with connect(daemon.config.runtime_dir, upgrade=False) as session, session.open(on_disk(nbytes=8 << 20)) as weights:
        stopping, wrong, sums = threading.Event(), list[float](), [0]
        expected = float(weights["weight"].sum())

        def read() -> None:
            array = weights["weight"]
            while not stopping.is_set():
                if (found := float(array.sum())) != expected:
                    wrong.append(found)
                sums[0] += 1

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        mapped = session._mappings.held()[0]
        daemon.store.load("m", CPU).result(WAIT_S)
        files = {str(replica.place): extent.fd for replica, extent in daemon.store.runner.extents().items()}
        try:
            for number in range(300):
                assert mapped.attachment.exchange(files["cpu" if number % 2 else "disk"])
        finally:
            stopping.set()
            for reader in readers:
                reader.join()
        assert wrong == []
        assert sums[0] > 0


def test_after_a_restart_weights_on_disk_move_if_their_image_lies_in_memory(
    start_process: Callable[..., subprocess.Popen[bytes]],
    serve: Callable[..., Daemon],
    folder: Path,
    checkpoint: Callable[..., Path],
) -> None:
    process = start_process()
    path = checkpoint("a", nbytes=100_000)
    with connect(folder / "run") as session, connect(folder / "run", upgrade=False) as loader:
        loader.open_file(path, place="disk").close()
        with session.open_file(path) as weights:
            assert weights.place == "disk"
            before = weights["weight"].copy()
            session._mappings.upgrades = _Deaf()  # type: ignore[assignment] # the event before the restart is lost
            loader.open_file(path, place="cpu").close()
            process.send_signal(signal.SIGKILL)
            process.wait()
            session._mappings.upgrades = type(loader._mappings.upgrades)()
            serve()
            moves(weights)
            assert (weights["weight"] == before).all()


class _Deaf(list):  # type: ignore[type-arg]
    """Takes nothing in."""

    def append(self, _: object) -> None:
        """Forget it."""


# fault (in place): weights move from disk to memory under readers; the daemon dies, or the image is gone
def test_a_daemon_that_dies_in_the_midst_leaves_the_weights_readable_on_disk(
    start_process: Callable[..., subprocess.Popen[bytes]],
    serve: Callable[..., Daemon],
    folder: Path,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trims_client.mapping import upgrades

    process = start_process()
    path, died = checkpoint("a", nbytes=100_000), threading.Event()
    real = upgrades._move

    def dies(*given: object) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        real(*given)  # type: ignore[arg-type]
        died.set()

    monkeypatch.setattr(upgrades, "_move", dies)
    with connect(folder / "run") as session:
        session.open_file(path, place="disk").close()
        with session.open_file(path) as weights:
            before = weights["weight"].copy()
            with connect(folder / "run") as loader:
                loader.open_file(path, place="cpu").close()
            assert died.wait(WAIT_S)
            assert weights.place == "disk"
            assert (weights["weight"] == before).all()
            monkeypatch.setattr(upgrades, "_move", real)
            serve()
            moves(weights)
            assert (weights["weight"] == before).all()


# fault (in place): weights move from disk to memory under readers; the daemon dies, or the image is gone
def test_an_image_that_has_left_memory_again_is_not_loaded_for_an_upgrade(
    daemon: Daemon, session: Session, on_disk: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trims_client.mapping import upgrades

    real, tried = upgrades._move, threading.Event()

    def late(*given: object) -> None:
        daemon.store.evict("m", CPU)
        real(*given)  # type: ignore[arg-type]
        tried.set()

    monkeypatch.setattr(upgrades, "_move", late)
    with session.open(on_disk()) as weights:
        daemon.store.load("m", CPU).result(WAIT_S)
        assert tried.wait(WAIT_S)
        assert weights.place == "disk"
        assert states(daemon) == {"disk": "sealed"}
        assert np.isfinite(weights["weight"]).all()


def test_an_upgrade_of_damaged_memory_is_refused_and_changes_nothing(
    daemon: Daemon, session: Session, on_disk: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.open(on_disk()) as weights:
        held = next(iter(session._mappings.held()))
        short = os.memfd_create("short")
        channel = session._connection.live_channel()
        grant = {"lease": 10**6, "key": held.key, "place": "cpu", "digest": held.digest}
        with pytest.raises(TrimsError, match="has 0 bytes, the image"):
            session._mappings.exchange(held, channel, grant, short)
        assert not session._mappings.exchange(held, channel, {**grant, "digest": "another"}, short)
        os.close(short)
        assert weights.place == "disk"
        assert np.isfinite(weights["weight"]).all()
