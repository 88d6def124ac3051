"""Models on a GPU, end to end: daemon, keeper and clients as processes, on the fake driver."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import states, wait_until
from on_device import OTHER_UUID, TOTAL_BYTES, UUID, client, read, say
from trims_client import connect
from trims_client.mapping.device import leave_devices

from trims.control.client import Admin
from trims.core.errors import CapacityError, ConfigError, CudaError, InUseError, NotSupportedError
from trims.core.place import CPU, DISK, GPU, Place
from trims.daemon.check import check_store
from trims.keeper.client import KeeperConnection
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import FakeCuda, make_devices
from trims.trace import spans
from trims.trace.reader import read_spans

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")


@pytest.fixture(params=["vmm", "ipc"])
def gpu_daemon(request: pytest.FixtureRequest, serve_gpu: Callable[..., Daemon]) -> Daemon:
    return serve_gpu(gpu_driver=request.param)


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


def test_a_disk_image_goes_to_the_device_without_a_copy_in_host_memory(
    gpu_daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    path, runtime = checkpoint("m", nbytes=40 << 20), gpu_daemon.config.runtime_dir
    name = f"file:{path}"
    with connect(runtime) as session, session.open_file(path, place="cpu") as weights:
        content = bytes(weights["weight"])
    gpu_daemon.store.load(name, DISK).result(60)
    gpu_daemon.store.evict(name, CPU)
    wait_until(lambda: states(gpu_daemon) == {"disk": "sealed"}, "it is not on disk alone")
    with connect(runtime) as session, session.open_file(path, place="gpu") as weights:
        assert states(gpu_daemon) == {"disk": "sealed", "gpu:0": "sealed"}
        assert gpu_daemon.store.counters["fills.cpu"] == 1, "the first open's"
        assert read(weights.on_device("weight")) == content


_IMPORTS = """
import sys, trims
with trims.connect(sys.argv[1]) as session:
    session.open_file(sys.argv[2]).close()
    before = set(sys.modules)
    with session.open_file(sys.argv[2], place="gpu"):
        print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.usefixtures("own_starts")
def test_an_open_on_a_device_imports_a_handful_of_modules_and_no_package(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    command = [sys.executable, "-c", _IMPORTS, str(daemon.config.runtime_dir), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.split())
    ours = {name for name in imported if name.startswith("trims") and "connection" not in name}  # a thread's own
    assert ours == {
        "trims.core.units", "trims.memory.cuda", "trims.memory.cuda.api", "trims.memory.cuda.connect",
        "trims.memory.cuda.drivers", "trims_client.mapping.device", "trims_client.mapping.dlpack",
        "trims.testing", "trims.testing.fake_cuda",  # instead of trims.memory.cuda.borrower
    }  # fmt: skip
    heavy = {"cuda", "numpy", "dataclasses", "inspect", "asyncio", "grpc", "msgspec", "pynvml", "torch"}
    assert not heavy & {name.partition(".")[0] for name in imported}


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
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        weights = session.open_file(path, place="gpu")
        tensor = weights.on_device("step")
        weights.close()
        assert read(tensor)
        with pytest.raises(InUseError):
            daemon.store.evict(f"file:{path}", GPU)
        del tensor
        session.open_file(path).close()  # given-up weights are reported with the next request
        daemon.store.evict(f"file:{path}", GPU)
    assert "gpu:0" not in states(daemon)


# fault (gpus): the daemon ends, at any moment of a copy or under readers -> the next one adopts the device's images;
# readers notice nothing
def test_a_restarted_daemon_finds_the_keeper_and_what_it_holds(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    path, first = checkpoint("m"), serve_gpu()
    with connect(first.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
    first.ask_to_end()
    first.stop()
    second = serve_gpu()
    assert states(second)["gpu:0"] == "sealed"
    assert second.store.counters["adopted"] == 2
    with connect(second.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
        assert weights.warm
        assert read(weights.on_device("step"))


def test_a_model_that_must_leave_the_device_stays_in_shared_memory(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve_gpu()
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


# fault (gpus): the device is full, of others or of leases
def test_a_full_device_is_a_capacity_error_with_the_numbers(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve_gpu()
    held, other = checkpoint("a", nbytes=120 << 20), checkpoint("b", nbytes=120 << 20)
    with connect(daemon.config.runtime_dir) as session, session.open_file(held, place="gpu"):
        with pytest.raises(CapacityError, match=r"no room at gpu:0: .* leased"):
            session.open_file(other, place="gpu")
        with session.open_file(other) as weights:
            assert weights.place == "cpu"


def test_eight_processes_read_one_copy(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], cuda: str
) -> None:
    daemon, path = serve_gpu(), checkpoint("m", nbytes=64 << 20)
    watcher = FakeCuda(cuda.partition(":")[2])
    (device,) = watcher.devices()
    with client(daemon, path, "hold"):
        one = watcher.free_bytes(device)
        with client(daemon, path, "hold"), client(daemon, path, "hold"):
            contexts = 2 * (16 << 20)
            assert one - watcher.free_bytes(device) == contexts


# fault (gpus): an `ipc` borrower closes and runs on -> its memory stays until it ends
@pytest.mark.parametrize("how", ["close", "vanish"])
def test_with_handles_memory_is_freed_only_when_the_process_is_gone(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], how: str
) -> None:
    """`ipc`: freeing under a borrower is undefined, and only the end of its process proves that it has ended."""
    daemon, path = serve_gpu(gpu_driver="ipc"), checkpoint("m")
    with client(daemon, path, how) as process:
        say(process, "closed" if how == "close" else "session closed")
        if how == "close":
            assert daemon.store.counters["leases_kept"] == 1
            say(process, "session closed")
        with pytest.raises(InUseError):
            daemon.store.evict(f"file:{path}", GPU)
        process.kill()
        process.wait()
        wait_until(lambda: not daemon.store.residency.leases.by_number, "its lease stays")
    daemon.store.evict(f"file:{path}", GPU)
    assert "gpu:0" not in states(daemon)


def test_a_missing_device_named_in_gpus_stops_the_daemon_and_lists_the_others(
    serve_gpu: Callable[..., Daemon],
) -> None:
    with pytest.raises(ConfigError, match=f"no GPU GPU-x; there are {UUID}"):
        serve_gpu(gpus="GPU-x")


def test_a_daemon_that_cannot_have_its_second_device_lets_go_of_the_first(
    serve_gpu: Callable[..., Daemon], folder: Path
) -> None:
    devices = [Device(UUID, "Fake", TOTAL_BYTES), Device(OTHER_UUID, "Small", 32 << 20)]
    make_devices(folder / "cuda", devices)
    with pytest.raises(ConfigError, match=f"{OTHER_UUID}.*lower gpu_reserve_bytes"):
        serve_gpu(gpus=f"{UUID},{OTHER_UUID}")
    for uuid in (UUID, OTHER_UUID):
        with KeeperConnection(folder / "run" / f"{uuid}.sock") as keeper:
            keeper.end()


def test_without_devices_a_place_on_one_is_refused_by_name(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(gpus="none")
    path, refusal = checkpoint("m"), pytest.raises(NotSupportedError, match="no tier gpu:0; it has cpu, disk")
    with connect(daemon.config.runtime_dir) as session, refusal:
        session.open_file(path, place="gpu")


# fault (gpus): a process that cannot see the device opens there -> `not_supported` with device and reason
def test_a_process_that_cannot_reach_the_device_says_so_and_holds_nothing(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
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
    wait_until(lambda: not daemon.store.residency.leases.by_number, "its lease stays")


# fault (gpus): weights are closed during a graph capture -> a warning; the capture is ruined, the mapping stays
def test_weights_that_cannot_be_closed_keep_their_lease_and_delay_no_other(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver waits for no device while another thread captures a CUDA graph there."""

    def refuse(_: FakeCuda) -> None:
        raise CudaError("cuCtxSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        weights = session.open_file(path, place="gpu")
        with monkeypatch.context() as capturing:
            capturing.setattr(FakeCuda, "wait", refuse)
            weights.close()
            session.open_file(path).close()
            with pytest.raises(InUseError):
                daemon.store.evict(f"file:{path}", GPU)
        wait_until(lambda: not daemon.store.residency.leases.by_number, "its lease stays")
        daemon.store.evict(f"file:{path}", GPU)
    assert not check_store(daemon.store, verify=True).findings


@pytest.mark.parametrize("driver", ["vmm", "ipc"])
@pytest.mark.parametrize("peers", [True, False])
def test_a_model_is_copied_between_peer_devices_directly_else_through_the_host(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path, driver: str, *, peers: bool
) -> None:
    devices = [
        Device(UUID, "Fake", TOTAL_BYTES),
        Device(OTHER_UUID, "Fake", TOTAL_BYTES, peers=(UUID,) if peers else ()),
    ]
    make_devices(folder / "cuda", devices)
    daemon, path = serve_gpu(gpu_driver=driver), checkpoint("m", nbytes=20 << 20)
    name = f"file:{path}"
    spans.configure(folder / "trace", "tester", everything=True)
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(path, place="gpu:0").close()
        daemon.store.evict(name, CPU)
        with session.open_file(path, place="gpu:1") as weights, session.open_file(path) as on_host:
            assert weights.device == OTHER_UUID
            assert read(weights.on_device("weight")) == bytes(on_host.raw("weight"))
    spans.stop()
    copies = {span.name for span in read_spans(folder / "trace") if span.name.startswith("copy.")}
    assert ("copy.gpu:0-gpu:1" in copies) is peers
    assert ("copy.cpu-gpu:1" in copies) is not peers
    assert not check_store(daemon.store, verify=True).findings


def test_places_are_numbered_and_named(serve_gpu: Callable[..., Daemon]) -> None:
    daemon = serve_gpu()
    assert [place for place in daemon.store.tiers if place.tier is GPU.tier] == [Place.parse("gpu:0")]


def test_a_flipped_byte_on_a_device_is_found_by_a_check_and_taken_out_of_service(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon, path = serve_gpu(), checkpoint("m", nbytes=4 << 20)
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
    with Admin(daemon.config.runtime_dir) as admin:
        sound = admin.check(verify=True)
        assert sound.findings == ()
        assert set(sound.verified_by) == {"blake3", "products"}, "the device has summed up its own bytes"
        assert sum(sound.verified_by.values()) == sound.verified_bytes
        (held,) = (each for each in (folder / "cuda").glob("memory.*.vmm.*") if each.stat().st_size >= 4 << 20)
        byte = held.read_bytes()[3 << 20]
        with held.open("r+b") as file:
            file.seek(3 << 20)
            file.write(bytes([byte ^ 1]))
        (finding,) = admin.check(verify=True).findings
    assert "at gpu:0: its bytes have the sum (by host) " in finding
    assert "it is taken out of service" in finding
