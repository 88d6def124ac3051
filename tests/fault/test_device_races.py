"""Races and refusals on the way to a device: each is staged, none is waited for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from damages import DAMAGES
from looking import charged, leases, put_on_disk, restart, states, wait_until
from on_device import UUID, Raw, client, kill_keeper, raws, read
from trims_client import connect

from trims.core.errors import ConfigError, DeviceLostError, InUseError, NotSupportedError
from trims.core.place import CPU, DISK, GPU
from trims.daemon.check import check_store
from trims.keeper.client import KeeperConnection
from trims.store import device_leases
from trims.wire.frames import encode
from trims.wire.messages import Open
from trims.wire.peer import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


raw = pytest.fixture(raws)


# -- damaged sources ---------------------------------------------------------------------------------------------------


# fault (gpus): a damaged disk image on its way to a device -> nothing; served from the artifact
@pytest.mark.parametrize("how", list(DAMAGES))
def test_a_damaged_disk_image_never_gets_to_a_device(
    how: str, serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    """Hashing happens while the image is copied: a truncated file must not end the process that hashes it."""
    daemon, path = serve_gpu(), checkpoint("m", nbytes=20 << 20)
    DAMAGES[how](put_on_disk(daemon, path))
    with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
        assert read(weights.on_device("weight")) == np.random.default_rng(ord("m")).random(20 << 17).tobytes()
    wait_until(lambda: charged(daemon, DISK) == 0, "the damaged image stays")
    assert daemon.store.counters["broken"] == 1
    assert not check_store(daemon.store, verify=True).findings


# -- grants on their way -----------------------------------------------------------------------------------------------


def fill_socket(daemon: Daemon, deaf: Raw, path: Path, place: str) -> list[int]:
    """Open until the door cannot send any more; returns the numbers of the leases that were granted."""
    (held_up,) = daemon.attach.connections()
    number = 0
    while not held_up.interest & select.EPOLLOUT:
        number += 1
        deaf.sock.sendall(encode({"op": "open", "id": number, "path": str(path), "place": place}))
        wait_until(lambda: leases(daemon) == number, "it was not granted")  # noqa: B023 - called at once
    return sorted(daemon.store.residency.leases.by_number)


def descriptors(deaf: Raw, count: int) -> list[tuple[int, int]]:
    """Device and inode of each that comes."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        _, fds, _, _ = socket.recv_fds(deaf.sock, 65536, 64)
        for fd in fds:
            status = os.fstat(fd)
            found.append((status.st_dev, status.st_ino))
            os.close(fd)
    return found


# fault (gpus): grants are left unread while leases end -> descriptors are those of their grants
@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_a_delayed_grant_comes_with_its_own_descriptor(
    serve_gpu: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    raw: Callable[[Daemon], Raw],
    folder: Path,
    place: str,
) -> None:
    """A client that reads late has closed its leases meanwhile: what waits for it must not be another's file."""
    daemon, path = serve_gpu(), checkpoint("m")
    deaf = raw(daemon)
    granted = fill_socket(daemon, deaf, path, place)
    for lease in granted:
        deaf.sock.sendall(encode({"op": "close", "lease": lease}))
    wait_until(lambda: not leases(daemon), "not closed")
    daemon.store.evict(f"file:{path}", GPU if place == "gpu" else CPU)
    with contextlib.ExitStack() as others:
        for number in range(64):  # whatever numbers have become free
            others.enter_context((folder / f"secret{number}").open("w"))
        assert len(set(descriptors(deaf, len(granted)))) == 1, "one of them is another file"


# fault (gpus): the keeper dies between a grant and its answer -> `device_lost`
def test_a_keeper_that_dies_between_grant_and_answer_leaves_an_error_to_answer(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], raw: Callable[[Daemon], Raw]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
    reader = raw(daemon)
    wait_until(lambda: len(daemon.attach.connections()) == 1, "the first has not gone")
    (held_up,) = daemon.attach.connections()

    def both() -> None:
        daemon.attach._handle(held_up, Open(7, None, str(path), "gpu", None, prefetch=False))
        daemon.store.device_leases.lost(GPU)

    daemon.attach.run(both)
    answers = [reader.next(), reader.next()]
    (error,) = [each for each in answers if each.get("id") == 7]
    assert error["error"]["code"] == "device_lost"
    (event,) = [each for each in answers if "event" in each]
    assert event["event"] == "lost"


# fault (gpus): `ipc` to a process in another PID namespace -> `not_supported` with the remedy; `vmm` works
def test_a_process_that_cannot_be_watched_is_granted_nothing_that_must_outlive_it(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients from another process-id namespace show as process 0. No other client notices."""
    daemon, path = serve_gpu(gpu_driver="ipc"), checkpoint("m")

    def refuses(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    with connect(daemon.config.runtime_dir) as session:
        with monkeypatch.context() as patched:
            patched.setattr(PeerProcess, "take", refuses)
            with pytest.raises(NotSupportedError, match=r"--pid=host.*vmm"):
                session.open_file(path, place="gpu")
        assert not leases(daemon)
        with session.open_file(path) as weights:
            assert weights.place == "cpu"
        daemon.store.evict(f"file:{path}", GPU)


# -- a device that does not answer -------------------------------------------------------------------------------------


# fault (gpus): a keeper hangs -> its device's requests wait; killed after two minutes without an answer
def test_a_keeper_that_hangs_holds_up_its_own_device_only(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path, other, third = serve_gpu(workers=1), checkpoint("m"), checkpoint("other"), checkpoint("third")
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
        with KeeperConnection(daemon.config.runtime_dir / f"{UUID}.sock") as keeper:
            pid = keeper.hello().pid
        os.kill(pid, signal.SIGSTOP)
        try:
            evicting = threading.Thread(target=daemon.store.evict, args=(f"file:{path}", GPU))
            evicting.start()
            daemon.store.load(f"file:{other}", GPU)
            with session.open_file(third) as weights:
                assert weights.place == "cpu"
            daemon.store.evict(f"file:{third}", CPU)
            assert daemon.store.residency.find(daemon.store.key_of(f"file:{third}"), CPU) is None
        finally:
            os.kill(pid, signal.SIGCONT)
        evicting.join()
    wait_until(lambda: charged(daemon, GPU) > 0, "it goes on when the keeper does")


# -- restarts under readers --------------------------------------------------------------------------------------------


# fault (gpus): `ipc`: a restart while a reader is stopped -> its memory stays 30 s
def test_memory_opened_by_handle_stays_until_its_reader_finds_the_next_daemon(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_leases, "GUARD_S", 10_000.0)
    daemon, path = serve_gpu(gpu_driver="ipc"), checkpoint("m")
    with client(daemon, path, "hold") as reader:
        os.kill(reader.pid, signal.SIGSTOP)
        second = restart(daemon, serve_gpu, gpu_driver="ipc")
        with pytest.raises(InUseError):
            second.store.evict(f"file:{path}", GPU)
        os.kill(reader.pid, signal.SIGCONT)
        wait_until(lambda: leases(second) == 2, "the reader did not take its lease up")
        second.store.device_leases.expire(float("inf"))
        with pytest.raises(InUseError):
            second.store.evict(f"file:{path}", GPU)
    wait_until(lambda: not leases(second), "held_up lease stays")
    second.store.evict(f"file:{path}", GPU)


def test_the_workspace_of_readers_is_counted_again_after_a_restart(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve_gpu()
    stated = {"name": "m", "artifact": {"path": str(checkpoint("m"))}, "residency": {"workspace_bytes": "52MiB"}}
    daemon.registry.put(stated, "")
    with connect(daemon.config.runtime_dir) as session, session.open("m", place="gpu"):
        second = restart(daemon, serve_gpu)
        wait_until(lambda: leases(second) == 1, "the lease was not taken up")
        assert second.store.residency.capacity.at[GPU].workspace_bytes == 52 << 20


def test_what_was_to_go_is_not_brought_back_when_its_keeper_dies(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="gpu"):
        daemon.store.evict(f"file:{path}", GPU, drain=True)
        kill_keeper(daemon)
        wait_until(lambda: "gpu:0" not in states(daemon), "its end was not noticed")
    assert daemon.store.counters["refills"] == 0


def test_a_daemon_that_cannot_take_over_leaves_nothing_half_open(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trims.tiers.cpu import CpuTier

    daemon = serve_gpu()
    daemon.ask_to_end()
    daemon.stop()

    def fails(self: Any) -> Iterator[None]:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(CpuTier, "scan", fails)
        with pytest.raises(OSError, match="Input/output"):
            serve_gpu()
    with connect(serve_gpu().config.runtime_dir) as session, session.open_file(checkpoint("m")) as weights:
        assert weights["weight"].size


# fault (gpus): a device is lost at a start -> `gpus: auto` goes on without it and says why
def test_a_device_that_is_lost_while_the_daemon_starts_leaves_the_host_tiers(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> Path:
        raise DeviceLostError("it fell off the bus")

    monkeypatch.setattr("trims.daemon.gpus.find_keeper", lost)
    daemon = serve_gpu()
    with connect(daemon.config.runtime_dir) as session, session.open_file(checkpoint("m")) as weights:
        assert weights.place == "cpu"
    daemon.ask_to_end(purge=True)
    daemon.stop()
    with pytest.raises(ConfigError, match="fell off the bus"):
        serve_gpu(gpus=UUID)
