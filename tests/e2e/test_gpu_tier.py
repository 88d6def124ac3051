"""Models on a GPU, end to end: daemon, keeper and clients as processes, on the fake driver."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
from trims_client import connect
from trims_client.device import DeviceTensor, leave_devices

from trims.core.errors import CapacityError, ConfigError, InUseError, NotSupportedError
from trims.core.place import CPU, GPU, Place
from trims.daemon.check import check_store
from trims.keeper.client import KeeperConnection
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import FakeCuda, lose_device, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

UUID = "GPU-00000000-0000-0000-0000-000000000001"
TOTAL = 256 << 20
CLIENT = """
import sys
from trims_client import connect
with connect(sys.argv[1]) as session:
    weights = session.open(sys.argv[2], place="gpu")
    print("open", flush=True)
    sys.stdin.readline()
    if sys.argv[3] == "close":
        weights.close()
        print("closed", flush=True)
        sys.stdin.readline()
print("session closed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def kind(folder: Path) -> Iterator[str]:
    devices = folder / "cuda"
    devices.mkdir()
    yield make_devices(devices, [Device(UUID, "Fake", TOTAL)])
    leave_devices()


@pytest.fixture
def start(serve: Callable[..., Daemon], kind: str) -> Callable[..., Daemon]:
    def make(**settings: object) -> Daemon:
        values = {"gpus": "auto", "cuda": kind, "gpu_share": 1.0, "gpu_reserve_bytes": "48MiB", **settings}
        return serve(**values)

    return make


@pytest.fixture(params=["vmm", "ipc"])
def gpu_daemon(request: pytest.FixtureRequest, start: Callable[..., Daemon]) -> Daemon:
    return start(gpu_driver=request.param)


def read(tensor: DeviceTensor) -> bytes:
    """On the fake, device memory is this process's own."""
    return bytes((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.address)) if tensor.nbytes else b""


def states(daemon: Daemon) -> dict[str, str]:
    with daemon.store.locked():
        return {str(replica.place): replica.state.value for replica in daemon.store.residency.replicas.values()}


def until(true: Callable[[], bool], what: str = "it never came") -> None:
    end_s = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


@contextmanager
def client(daemon: Daemon, path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened a file's weights on the device."""
    command = [
        sys.executable,
        "-c",
        CLIENT.replace("session.open(", "session.open_file("),
        str(daemon.config.runtime_dir),
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, str(path), how], text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def say(process: subprocess.Popen[str], answer: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{answer}\n"


def test_a_model_opened_on_a_device_has_the_bytes_of_its_file(
    gpu_daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    given = {"a": np.arange(100_000, dtype=np.float32), "none": np.zeros((0, 3), np.int8), "one": np.array(7, np.int64)}
    path = checkpoint("m", given)
    with connect(gpu_daemon.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
        assert (weights.place, weights.device, weights.warm) == ("gpu:0", UUID, False)
        assert sorted(weights) == sorted(given)
        for name, array in given.items():
            tensor = weights.on_device(name)
            assert read(tensor) == array.tobytes()
            interface = tensor.__cuda_array_interface__
            assert interface["typestr"] == array.dtype.str
            assert interface["shape"] == array.shape
        with session.open_file(path, place="gpu") as again:
            assert again.warm
            assert again.on_device("a").address == weights.on_device("a").address, "one mapping in a process"
        del tensor
    assert states(gpu_daemon) == {"cpu": "sealed", "gpu:0": "sealed"}


def test_what_lies_on_a_device_is_not_read_as_if_it_lay_on_the_host(
    gpu_daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    with connect(gpu_daemon.config.runtime_dir) as session:
        with session.open_file(path, place="gpu") as weights:
            for use in (weights.numpy, weights.raw, weights.private_raw, lambda _: weights.data()):
                with pytest.raises(NotSupportedError, match=r"gpu:0: take on_device"):
                    use("weight")
        with session.open_file(path) as weights, pytest.raises(NotSupportedError, match="open it with place='gpu'"):
            weights.on_device("weight")


def test_tensors_outlive_their_weights_and_keep_the_lease(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = start(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        weights = session.open_file(path, place="gpu")
        tensor = weights.on_device("step")
        weights.close()
        assert read(tensor)
        with pytest.raises(InUseError):
            daemon.store.evict(f"file:{path}", GPU)
        del tensor
        session.open_file(path).close()  # what was given up is told with the next request
        daemon.store.evict(f"file:{path}", GPU)
    assert "gpu:0" not in states(daemon)


def test_a_restarted_daemon_finds_the_keeper_and_what_it_holds(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    path, first = checkpoint("m"), start()
    with connect(first.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
    first.ask_to_end()
    first.stop()
    second = start()
    assert states(second)["gpu:0"] == "sealed"
    assert second.store.counters["adopted"] == 2
    with connect(second.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
        assert weights.warm
        assert read(weights.on_device("step"))


def test_a_killed_keeper_costs_its_replicas_and_nothing_else(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = start(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        before = session.open_file(path, place="gpu")
        content = read(before.on_device("weight"))
        with KeeperConnection(daemon.config.runtime_dir / f"{UUID}.sock") as keeper:
            os.kill(keeper.hello().pid, signal.SIGKILL)
        until(lambda: states(daemon).get("gpu:0") == "draining", "its end was not noticed")
        assert read(before.on_device("weight")) == content, "a descriptor keeps the memory"
        before.close()
        until(lambda: "gpu:0" not in states(daemon))
        with session.open_file(path, place="gpu") as after:
            assert not after.warm
            assert read(after.on_device("weight")) == content
    assert not check_store(daemon.store, verify=True).findings


def test_a_model_that_must_leave_the_device_stays_in_shared_memory(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = start()
    large = [checkpoint(name, nbytes=80 << 20) for name in ("a", "b")]
    with connect(daemon.config.runtime_dir) as session:
        for path in large:
            session.open_file(path, place="gpu").close()
            daemon.store.evict(f"file:{path}", CPU)
        session.open_file(checkpoint("c", nbytes=100 << 20), place="gpu", deadline_s=60).close()
        assert daemon.store.counters["fills.cpu"] == 4, "one for each arrival, and one that came down from the device"
        with session.open_file(large[0]) as weights:
            assert weights.warm
    assert not check_store(daemon.store, verify=True).findings


def test_a_full_device_is_a_capacity_error_with_the_numbers(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = start()
    held, other = checkpoint("a", nbytes=120 << 20), checkpoint("b", nbytes=120 << 20)
    with connect(daemon.config.runtime_dir) as session, session.open_file(held, place="gpu"):
        with pytest.raises(CapacityError, match=r"no room at gpu:0: .* leased"):
            session.open_file(other, place="gpu")
        with session.open_file(other) as weights:
            assert weights.place == "cpu"


def test_eight_processes_read_one_copy(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path], kind: str
) -> None:
    daemon, path = start(), checkpoint("m", nbytes=64 << 20)
    watcher = FakeCuda(kind.partition(":")[2])
    (device,) = watcher.devices()
    with client(daemon, path, "hold"):
        one = watcher.free_bytes(device)
        with client(daemon, path, "hold"), client(daemon, path, "hold"):
            contexts = 2 * (16 << 20)
            assert one - watcher.free_bytes(device) == contexts


@pytest.mark.parametrize("how", ["close", "vanish"])
def test_with_handles_memory_is_freed_only_when_the_process_is_gone(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path], how: str
) -> None:
    """`ipc`: freeing under a borrower is undefined, and nothing but his end proves that he is none any more."""
    daemon, path = start(gpu_driver="ipc"), checkpoint("m")
    with client(daemon, path, how) as process:
        say(process, "closed" if how == "close" else "session closed")
        if how == "close":
            assert daemon.store.counters["leases_kept"] == 1
            say(process, "session closed")
        with pytest.raises(InUseError):
            daemon.store.evict(f"file:{path}", GPU)
        process.kill()
        process.wait()
        until(lambda: not daemon.store.residency.leases.by_number)
    daemon.store.evict(f"file:{path}", GPU)
    assert "gpu:0" not in states(daemon)


def test_a_device_that_is_named_and_not_there_stops_the_daemon_and_says_which_there_are(
    start: Callable[..., Daemon],
) -> None:
    with pytest.raises(ConfigError, match=f"no GPU GPU-x; there are {UUID}"):
        start(gpus="GPU-x")


def test_a_daemon_that_cannot_have_its_second_device_lets_go_of_the_first(
    start: Callable[..., Daemon], folder: Path
) -> None:
    small = "GPU-00000000-0000-0000-0000-000000000002"
    devices = [Device(UUID, "Fake", TOTAL), Device(small, "Small", 32 << 20)]
    make_devices(folder / "cuda", devices)
    with pytest.raises(ConfigError, match=f"{small}.*lower gpu_reserve_bytes"):
        start(gpus=f"{UUID},{small}")
    for uuid in (UUID, small):
        with KeeperConnection(folder / "run" / f"{uuid}.sock") as keeper:
            keeper.end()


def test_without_devices_a_place_on_one_is_refused_by_name(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(gpus="none")
    path, refusal = checkpoint("m"), pytest.raises(NotSupportedError, match="no tier gpu:0; it has cpu, disk")
    with connect(daemon.config.runtime_dir) as session, refusal:
        session.open_file(path, place="gpu")


def test_a_process_that_cannot_reach_the_device_says_so_and_holds_nothing(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon, path = start(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        session.prefetch  # noqa: B018 - connected
        lose = json.loads((folder / "cuda" / "devices.json").read_text())
        with connect(daemon.config.runtime_dir) as other:
            other.open_file(path, place="gpu").close()
        (folder / "cuda" / "devices.json").write_text("[]")
        leave_devices()
        with pytest.raises(NotSupportedError, match="cannot be opened here"):
            session.open_file(path, place="gpu")
        (folder / "cuda" / "devices.json").write_text(json.dumps(lose))
    until(lambda: not daemon.store.residency.leases.by_number)


def test_a_lost_device_is_an_error_that_names_it(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    from trims.core.errors import DeviceLostError

    daemon = start()
    lose_device(folder / "cuda", UUID)
    with connect(daemon.config.runtime_dir) as session:
        with pytest.raises(DeviceLostError, match=UUID):
            session.open_file(checkpoint("m"), place="gpu")
        with session.open_file(checkpoint("m")) as weights:
            assert weights.place == "cpu"
    (folder / "cuda" / f"lost.{UUID}").unlink()


@pytest.mark.parametrize("driver", ["vmm", "ipc"])
@pytest.mark.parametrize("peers", [True, False])
def test_a_model_comes_from_the_other_device_directly_if_that_is_a_peer_and_through_the_host_if_not(
    start: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path, driver: str, *, peers: bool
) -> None:
    other = "GPU-00000000-0000-0000-0000-000000000002"
    devices = [Device(UUID, "Fake", TOTAL), Device(other, "Fake", TOTAL, peers=(UUID,) if peers else ())]
    make_devices(folder / "cuda", devices)
    daemon, path = start(gpu_driver=driver), checkpoint("m", nbytes=20 << 20)
    name = f"file:{path}"
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(path, place="gpu:0").close()
        daemon.store.evict(name, CPU)
        with session.open_file(path, place="gpu:1") as weights, session.open_file(path) as on_host:
            assert weights.device == other
            assert read(weights.on_device("weight")) == bytes(on_host.raw("weight"))
    copies = {span.name for span in daemon.tracer.spans if span.name.startswith("copy.")}
    assert ("copy.gpu:0-gpu:1" in copies) is peers
    assert ("copy.cpu-gpu:1" in copies) is not peers
    assert not check_store(daemon.store, verify=True).findings


def test_places_are_numbered_and_named(start: Callable[..., Daemon]) -> None:
    daemon = start()
    assert [place for place in daemon.store.tiers if place.tier is GPU.tier] == [Place.parse("gpu:0")]
