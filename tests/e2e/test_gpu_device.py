"""Daemon, keeper and clients as processes, on the fake driver and, the same tests, on a real device (`make gpu-check`).

The clients are processes of their own: they alone make contexts, and read the device's memory back by the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from on_device import reached, starter
from safetensors.numpy import save_file
from trims_client import connect

from trims.daemon.check import check_store
from trims.keeper.client import KeeperConnection
from trims.memory.cuda.connect import connect as connect_driver
from trims.memory.cuda.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon
    from trims.memory.cuda import api

CLIENT = """
import ctypes, hashlib, json, sys
from trims_client import connect
from trims.memory.cuda.connect import connect as connect_driver

def digest(cuda, tensor):
    host = ctypes.create_string_buffer(tensor.nbytes)
    stream = cuda.stream()
    cuda.copy_out(ctypes.addressof(host), tensor.address, tensor.nbytes, stream)
    cuda.synchronize(stream)
    cuda.end_stream(stream)
    return hashlib.sha256(host.raw).hexdigest()

kind, runtime_dir, path = sys.argv[1:]
with connect(runtime_dir) as session:
    with session.open_file(path, place="gpu") as weights:
        cuda = connect_driver(kind)
        cuda.use(weights.device)
        for _ in sys.stdin:
            found = {name: digest(cuda, weights.on_device(name)) for name in weights}
            told = {"warm": weights.warm, "device": weights.device, "place": weights.place, "digests": found}
            print(json.dumps(told), flush=True)
"""


@pytest.fixture(params=["fake", pytest.param("driver", marks=pytest.mark.gpu)])
def kind(request: pytest.FixtureRequest, folder: Path) -> str:
    return reached(request, folder)


@pytest.fixture
def device(kind: str) -> api.Device:
    return connect_driver(kind).devices()[0]


@pytest.fixture
def start(serve: Callable[..., Daemon], kind: str) -> Callable[..., Daemon]:
    return starter(serve, kind)


@pytest.fixture
def path(folder: Path) -> Path:
    random = np.random.default_rng(7)
    tensors = {"large": random.random((3, 1 << 20)), "odd": np.arange(77, dtype=np.int8), "one": np.array(1.5)}
    save_file(tensors, folder / "m.safetensors")
    return folder / "m.safetensors"


@contextmanager
def client(kind: str, daemon: Daemon, path: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """A process that has the model open; each call has it read all of it from the device."""
    command = [sys.executable, "-c", CLIENT, kind, str(daemon.config.runtime_dir), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def read() -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("read\n")
            process.stdin.flush()
            told: dict[str, Any] = json.loads(process.stdout.readline())
            return told

        yield read
        process.communicate()
    assert process.returncode == 0


def digests(path: Path) -> dict[str, str]:
    """Return the digest of every tensor of the file."""
    import hashlib

    from safetensors.numpy import load_file

    return {name: hashlib.sha256(np.ascontiguousarray(array)).hexdigest() for name, array in load_file(path).items()}


def keeper_pid(daemon: Daemon, device: api.Device) -> int:
    with KeeperConnection(daemon.config.runtime_dir / f"{device.uuid}.sock") as keeper:
        return keeper.hello().pid


@pytest.mark.parametrize("driver", ["vmm", "ipc"])
def test_what_a_client_reads_on_the_device_is_what_the_file_holds(
    start: Callable[..., Daemon], kind: str, device: api.Device, path: Path, driver: str
) -> None:
    daemon = start(driver)
    with client(kind, daemon, path) as first, client(kind, daemon, path) as second:
        told, again = first(), second()
        assert told["digests"] == again["digests"] == digests(path)
        assert (told["device"], told["place"]) == (device.uuid, "gpu:0")
    assert not check_store(daemon.store, verify=True).findings


def test_a_reader_outlives_the_keeper_and_the_next_open_has_another_one(
    start: Callable[..., Daemon], kind: str, device: api.Device, path: Path
) -> None:
    daemon = start()
    with client(kind, daemon, path) as read:
        assert read()["digests"] == digests(path)
        killed = keeper_pid(daemon, device)
        os.kill(killed, signal.SIGKILL)
        assert read()["digests"] == digests(path), "a descriptor keeps the memory"
    wait_until(lambda: pid_or_none(daemon, device) not in (None, killed), "no other keeper was started")
    with client(kind, daemon, path) as read:
        assert read()["digests"] == digests(path)


def test_a_restarted_daemon_serves_what_the_keeper_has_kept(
    start: Callable[..., Daemon], kind: str, device: api.Device, path: Path
) -> None:
    daemon = start()
    with client(kind, daemon, path) as read:
        assert read()["warm"] is False
    kept = keeper_pid(daemon, device)
    daemon.ask_to_end()
    daemon.stop()
    second = start()
    assert keeper_pid(second, device) == kept
    with client(kind, second, path) as read:
        told = read()
        assert told["warm"] is True
        assert told["digests"] == digests(path)


def test_eviction_gives_the_memory_back(
    start: Callable[..., Daemon], kind: str, device: api.Device, path: Path
) -> None:
    daemon = start()
    with client(kind, daemon, path) as read:
        read()
    loaded = free_bytes(kind, device)
    with connect(daemon.config.runtime_dir):
        wait_until(lambda: not daemon.store.residency.leases.by_number, "a lease outlived its process")
    from trims.core.place import GPU

    daemon.store.evict(f"file:{path}", GPU)
    wait_until(lambda: free_bytes(kind, device) - loaded >= path.stat().st_size, "the memory did not come back")


def test_a_keeper_that_is_told_to_end_leaves_nothing_on_the_device(
    start: Callable[..., Daemon], kind: str, device: api.Device, path: Path
) -> None:
    before = free_bytes(kind, device)
    daemon = start()
    with client(kind, daemon, path) as read:
        read()
    pid = keeper_pid(daemon, device)
    daemon.ask_to_end(purge=True)
    daemon.stop()
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        ended, _, _ = select.select([fd], [], [], 20)
        os.close(fd)
        assert ended, "the keeper did not end"
    wait_until(lambda: free_bytes(kind, device) >= before, "something is left")


def free_bytes(kind: str, device: api.Device) -> int:
    return next(found.free_bytes for found in survey(kind) if found.uuid == device.uuid)


def pid_or_none(daemon: Daemon, device: api.Device) -> int | None:
    from trims.core.errors import TrimsError

    try:
        return keeper_pid(daemon, device)
    except TrimsError:
        return None
