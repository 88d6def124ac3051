"""The daemon is killed at every state of a fill, and started again: nothing is lost, nothing is left behind."""

# fault (daemon): SIGKILL at fifteen moments of a load, an answer, a free -> waiting clients get `lost_peer`; readers
# read on; the next daemon adopts complete images

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from dying_daemon import MOMENTS
from trims_client import connect

from trims.core.errors import ConfigError, TrimsError
from trims.core.place import CPU, DISK
from trims.daemon.check import check_store
from trims.daemon.main import shm_prefix
from trims.formats.conversion.scratch import Scratch

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")


def segments(folder: Path) -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(shm_prefix(folder / "state"))}


@pytest.mark.parametrize("moment", list(MOMENTS))
def test_whatever_the_moment_the_next_daemon_serves_true_bytes(
    moment: str,
    folder: Path,
    serve: Callable[..., Daemon],
    start_process: Callable[[str], subprocess.Popen[bytes]],
    checkpoint: Callable[..., Path],
) -> None:
    path = checkpoint("m", nbytes=200_000)
    process = start_process(moment)
    _provoke(folder, path, moment)
    assert process.wait(30) == -signal.SIGKILL, "the moment never came"

    daemon = serve(cpu_capacity_bytes="1MiB", disk_capacity_bytes="10MiB")
    adopted = [replica for replica in daemon.store.residency.replicas.values() if replica.place == CPU]
    assert len(segments(folder)) == len(adopted), "unfinished memory was left behind"
    assert adopted or moment != "when answered", "a granted image was not adopted"
    with connect(folder / "run") as session, session.open_file(path) as weights:
        expected = np.random.default_rng(ord("m")).random(25_000)
        np.testing.assert_array_equal(weights["weight"], expected)
    assert check_store(daemon.store, verify=True).findings == []
    assert daemon.store.residency.leases.by_number == {}


def _provoke(folder: Path, path: Path, moment: str) -> None:
    """Do what leads to the moment; the daemon dies under it."""
    import grpc

    from trims.wire import trims_pb2 as pb
    from trims.wire import trims_pb2_grpc

    try:
        with connect(folder / "run") as session:
            session.open_file(path).close()
            with grpc.insecure_channel(f"unix:{folder}/run/control.sock") as channel:
                control = trims_pb2_grpc.ControlStub(channel)
                if "disk" in moment:
                    list(control.Load(pb.LoadRequest(name=f"file:{path}", place="disk"), timeout=20))
                control.Evict(pb.EvictRequest(name=f"file:{path}"), timeout=20)
    except (TrimsError, grpc.RpcError):
        return


# fault (daemon): restart under readers -> nothing; clients take up their leases by themselves, keep-alive included
def test_clients_keep_reading_without_a_daemon_and_take_their_leases_up_again(
    folder: Path,
    serve: Callable[..., Daemon],
    start_process: Callable[[str], subprocess.Popen[bytes]],
    checkpoint: Callable[..., Path],
) -> None:
    process = start_process("")
    with connect(folder / "run") as session, session.open_file(checkpoint("m")) as weights:
        expected = float(weights["weight"].sum())
        process.kill()
        process.wait()
        assert float(weights["weight"].sum()) == expected
        daemon = serve()
        until = time.monotonic() + 120
        while len(daemon.store.residency.leases.by_number) != 1:
            assert time.monotonic() < until, "the lease was not taken up again"
            time.sleep(0.01)
        assert float(weights["weight"].sum()) == expected


# fault (daemon): SIGKILL with `cpu_memory: memfd` -> readers read on without a lease; the next daemon loads again
def test_sealed_memfds_of_a_killed_daemon_read_on_and_the_next_one_starts_empty(
    folder: Path,
    serve: Callable[..., Daemon],
    start_process: Callable[..., subprocess.Popen[bytes]],
    checkpoint: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = checkpoint("m", nbytes=200_000)
    process = start_process("", "cpu_memory=memfd")
    with connect(folder / "run") as session, session.open_file(path) as weights:
        expected = np.random.default_rng(ord("m")).random(25_000)
        process.kill()
        process.wait()
        assert segments(folder) == set()
        np.testing.assert_array_equal(weights["weight"], expected)

        daemon = serve(cpu_memory="memfd")
        assert {each.place for each in daemon.store.residency.replicas.values()} <= {DISK}
        until = time.monotonic() + 120
        while "but without a lease" not in caplog.text:
            assert time.monotonic() < until, "the client did not say that it reads on without a lease"
            time.sleep(0.01)
        np.testing.assert_array_equal(weights["weight"], expected)
        with session.open_file(path) as again:
            assert not again.warm
            np.testing.assert_array_equal(again["weight"], expected)
            np.testing.assert_array_equal(weights["weight"], expected)
            assert check_store(daemon.store, verify=True).findings == []
            assert len(daemon.store.residency.leases.by_number) == 1
    assert daemon.store.counters["adopted"] == daemon.store.counters["broken"] == 0


def test_named_memory_is_removed_when_the_next_daemon_would_never_find_it(
    folder: Path, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    first = serve()
    with connect(folder / "run") as session:
        session.open_file(checkpoint("m")).close()
    first.stop()
    assert segments(folder)
    serve(cpu_memory="memfd")
    assert segments(folder) == set()


# fault (daemon): a second daemon on the same runtime or state folder -> `ConfigError` with the first one's process id
def test_two_daemons_on_one_runtime_folder_are_one_too_many(daemon: Daemon, serve: Callable[..., Daemon]) -> None:
    with pytest.raises(ConfigError, match=rf"runtime folder .* process id {os.getpid()}.*trims shutdown"):
        serve(state_dir=daemon.config.runtime_dir / "elsewhere")


def test_two_daemons_on_one_state_folder_are_one_too_many(
    daemon: Daemon, serve: Callable[..., Daemon], folder: Path
) -> None:
    with pytest.raises(ConfigError, match="state folder"):
        serve(runtime_dir=folder / "run2")
    serve(runtime_dir=folder / "run2", state_dir=folder / "state2")


# fault (daemon): a socket left by a killed daemon -> nothing
def test_a_socket_left_by_a_killed_daemon_is_no_obstacle(
    folder: Path, serve: Callable[..., Daemon], start_process: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = start_process("")
    process.kill()
    process.wait()
    assert (folder / "run" / "attach.sock").exists()
    daemon = serve()
    with connect(daemon.config.runtime_dir):
        pass


def test_what_converters_of_a_killed_daemon_left_is_removed_by_the_next(
    folder: Path, serve: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    left = folder / f"trims-child-{os.geteuid()}-abc"
    left.mkdir()
    (left / "half.bin").write_bytes(b"x")
    held = Scratch()
    serve()
    assert not left.exists()
    assert Path(held.path).exists(), "a process still has it open"
    held.remove()


# fault (daemon): a damaged registry file -> `ConfigError` that names it; the file stays
def test_a_damaged_catalog_is_named_and_nothing_is_overwritten(folder: Path, serve: Callable[..., Daemon]) -> None:
    (folder / "state").mkdir()
    (folder / "state" / "registry.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(ConfigError, match=r"registry\.db is not a usable database"):
        serve()
    assert (folder / "state" / "registry.db").read_bytes().startswith(b"this is not")
