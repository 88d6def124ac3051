"""Bad days of a device: keepers killed, devices full or lost, readers that are notified, and what remains."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from dying_daemon import DEVICE_MOMENTS
from looking import leases, states, wait_until
from on_device import OTHER_UUID, TOTAL_BYTES, UUID, Raw, client, kill_keeper, raws, read
from trims_client import connect

from trims.core.errors import CallerError, CapacityError, DeviceLostError, InUseError, TrimsError
from trims.core.place import GPU
from trims.core.replica import State
from trims.daemon import gpus
from trims.daemon.check import check_store
from trims.keeper import watch
from trims.keeper.client import KeeperConnection
from trims.keeper.launch import find_keeper
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import FakeCuda, lose_device, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
raw = pytest.fixture(raws)


# -- a keeper that is killed -------------------------------------------------------------------------------------------


# fault (gpus): the keeper is killed, also in a copy -> sessions get a message; with `vmm` they read on; waiting
# clients `device_lost`; leased and pinned models are loaded again
@pytest.mark.parametrize("driver", ["vmm", "ipc"])
def test_readers_of_a_killed_keeper_are_told_and_their_model_is_loaded_again(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], raw: Callable[[Daemon], Raw], driver: str
) -> None:
    daemon, path = serve_gpu(gpu_driver=driver), checkpoint("m")
    reader, idler = raw(daemon), raw(daemon)
    grant = reader.ask({"op": "open", "id": 1, "path": str(path), "place": "gpu"})
    kill_keeper(daemon)
    told = reader.next()
    assert told == {"event": "lost", "lease": grant["lease"], "message": told["message"]}
    assert "keeper of gpu:0 has ended" in told["message"]
    wait_until(lambda: states(daemon).get("gpu:0") == "sealed" and not leases(daemon), "it is not back")
    assert daemon.store.counters["refills"] == daemon.store.counters["leases_lost"] == 1
    again = reader.ask({"op": "open", "id": 2, "path": str(path), "place": "gpu"})
    assert again["warm"]
    assert again["generation"] > grant["generation"]
    assert idler.ask({"op": "close", "id": 1, "lease": 99}) == {"id": 1, "closed": 99}, "it heard of nothing"
    assert not check_store(daemon.store, verify=True).findings


def test_with_vmm_a_reader_reads_on_after_its_keeper_was_killed(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        before = session.open_file(path, place="gpu")
        content = read(before.on_device("weight"))
        kill_keeper(daemon)
        wait_until(lambda: daemon.store.counters["leases_lost"] == 1, "its end was not noticed")
        assert read(before.on_device("weight")) == content
        with session.open_file(path, place="gpu", deadline_s=60) as after:
            assert read(after.on_device("weight")) == content
            assert after.on_device("weight").address != before.on_device("weight").address, "memory of its own"
        before.close()
    assert not check_store(daemon.store, verify=True).findings


def test_an_idle_model_is_loaded_again_only_when_it_is_opened(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, read_one, idle, pinned = serve_gpu(), checkpoint("r"), checkpoint("i"), checkpoint("p")
    with connect(daemon.config.runtime_dir) as session:
        for path in (idle, pinned):
            session.open_file(path, place="gpu").close()
        with session.open_file(read_one, place="gpu"):
            daemon.store.pin(f"file:{pinned}", GPU, pinned=True)
            kill_keeper(daemon)
            wait_until(lambda: daemon.store.counters["fills.gpu:0"] == 5, "the read one and the pinned one come back")
            wait_until(lambda: daemon.store.counters["refills"] == 2, "not counted")
        with session.open_file(idle, place="gpu") as weights:
            assert not weights.warm
    daemon.store.pin(f"file:{pinned}", GPU, pinned=False)


# fault (gpus): the keeper is killed, also in a copy
def test_a_keeper_that_is_killed_during_a_copy_fails_that_open_only(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, path = serve_gpu(), checkpoint("m", nbytes=96 << 20)
    (tier,) = daemon.gpus
    killed_at: list[int] = []
    copy_in = tier.copy_in

    def killed_in_the_middle(draft: Any, source: Any, on_progress: Any = None) -> None:
        def progress(done: int) -> None:
            if not killed_at:
                killed_at.append(done)
                kill_keeper(daemon)
            if on_progress is not None:
                on_progress(done)

        copy_in(draft, source, progress)

    monkeypatch.setattr(tier, "copy_in", killed_in_the_middle)
    with connect(daemon.config.runtime_dir) as session:
        with pytest.raises(DeviceLostError, match="keeper"):
            session.open_file(path, place="gpu")
        assert 0 < killed_at[0] < 96 << 20, "it was not in the middle"
        wait_until(lambda: _opens(session, path), "no open works any more")
    assert not check_store(daemon.store, verify=True).findings


def _opens(session: Any, path: Path) -> bool:
    try:
        session.open_file(path, place="gpu").close()
    except DeviceLostError:
        return False
    return True


# -- a device that is full or lost -------------------------------------------------------------------------------------


# fault (gpus): the device is full, of others or of leases -> `capacity` with the numbers; host tiers go on
def test_a_device_that_others_have_filled_is_a_capacity_error_and_costs_nothing(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], cuda: str
) -> None:
    """The ledger has room, the device does not: another program uses it."""
    daemon, path = serve_gpu(), checkpoint("m", nbytes=100 << 20)
    stranger = FakeCuda(cuda.partition(":")[2])
    stranger.use(UUID)
    taken = stranger.allocate(stranger.memory()[0] - (40 << 20))
    with connect(daemon.config.runtime_dir) as session:
        with pytest.raises(CapacityError, match="no memory left"):
            session.open_file(path, place="gpu")
        assert states(daemon) == {"cpu": "sealed"}
        stranger.free(taken)
        with session.open_file(path, place="gpu") as weights:
            assert weights.place == "gpu:0"
    stranger.leave()
    assert not check_store(daemon.store, verify=True).findings


def test_a_lost_device_is_an_error_that_names_it(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon = serve_gpu()
    lose_device(folder / "cuda", UUID)
    with connect(daemon.config.runtime_dir) as session:
        with pytest.raises(DeviceLostError, match=UUID):
            session.open_file(checkpoint("m"), place="gpu")
        with session.open_file(checkpoint("m")) as weights:
            assert weights.place == "cpu"
    (folder / "cuda" / f"lost.{UUID}").unlink()


# fault (gpus): a device is lost -> `device_lost` that names it; used again when it is back
def test_a_device_that_is_lost_takes_its_replicas_with_it_and_may_come_back(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], raw: Callable[[Daemon], Raw], folder: Path
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    reader = raw(daemon)
    grant = reader.ask({"op": "open", "id": 1, "path": str(path), "place": "gpu"})
    lose_device(folder / "cuda", UUID)
    with connect(daemon.config.runtime_dir) as session:
        with pytest.raises(DeviceLostError, match=UUID):
            session.open_file(checkpoint("other"), place="gpu")
        told = reader.next()
        assert (told["event"], told["lease"]) == ("lost", grant["lease"])
        wait_until(lambda: not leases(daemon), "a lease for nothing")
        (folder / "cuda" / f"lost.{UUID}").unlink()
        wait_until(lambda: _opens(session, path), "it does not come back")
    assert not check_store(daemon.store, verify=True).findings


def test_leased_and_pinned_models_are_loaded_again_when_the_device_is_back(
    serve_gpu: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    raw: Callable[[Daemon], Raw],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_TRY_AGAIN_S", 0.01)
    daemon = serve_gpu()
    models = {name: checkpoint(name) for name in ("read", "pinned", "idle")}
    with connect(daemon.config.runtime_dir) as session:
        for path in models.values():
            session.open_file(path, place="gpu").close()
    daemon.store.pin(f"file:{models['pinned']}", GPU, pinned=True)
    reader = raw(daemon)
    reader.ask({"op": "open", "id": 1, "path": str(models["read"]), "place": "gpu"})
    lose_device(folder / "cuda", UUID)
    with pytest.raises(DeviceLostError):
        daemon.store.load(f"file:{checkpoint('other')}", GPU).result(30)
    assert reader.next()["event"] == "lost"
    wait_until(lambda: not daemon.store.residency.leases.by_number, "a lease for nothing")
    (folder / "cuda" / f"lost.{UUID}").unlink()
    keys = {name: daemon.store.key_of(f"file:{path}") for name, path in models.items()}

    def there() -> set[str]:
        found = {name: daemon.store.read.replica(key, GPU) for name, key in keys.items()}
        return {name for name, view in found.items() if view is not None and view.state is State.SEALED}

    wait_until(lambda: there() == {"read", "pinned"}, "they are not back")
    assert daemon.store.counters["refills"] >= 2, "once more for each keeper that found its device lost"


# -- a keeper that hangs -----------------------------------------------------------------------------------------------


# fault (gpus): a keeper hangs
def test_a_keeper_that_does_not_answer_is_replaced_and_leased_models_are_reloaded(
    serve_gpu: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    raw: Callable[[Daemon], Raw],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_ASK_EVERY_S", 0.1)
    monkeypatch.setattr(watch, "_ANSWER_S", 2.0)
    monkeypatch.setattr(watch, "_MISSES", 2)
    daemon, path = serve_gpu(), checkpoint("m")
    reader = raw(daemon)
    grant = reader.ask({"op": "open", "id": 1, "path": str(path), "place": "gpu"})
    with KeeperConnection(daemon.config.runtime_dir / f"{UUID}.sock") as keeper:
        pid = keeper.hello().pid
    os.kill(pid, signal.SIGSTOP)
    told = reader.next()
    assert (told["event"], told["lease"]) == ("lost", grant["lease"])
    wait_until(lambda: states(daemon).get("gpu:0") == "sealed" and not leases(daemon), "it is not back")
    with KeeperConnection(daemon.config.runtime_dir / f"{UUID}.sock") as keeper:
        assert keeper.hello().pid != pid
    assert not check_store(daemon.store, verify=True).findings


def test_a_check_of_a_lost_device_says_so(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
    lose_device(folder / "cuda", UUID)
    (finding,) = check_store(daemon.store, verify=True).findings
    assert f"at gpu:0 cannot be examined now: {UUID} is lost" in finding
    (folder / "cuda" / f"lost.{UUID}").unlink()


# fault (gpus): `trims check --verify` without room for a context -> a finding; the replica stays
def test_a_check_that_finds_no_room_for_a_context_takes_nothing_out_of_service(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "find_keeper", partial(find_keeper, idle_s=0.0))
    daemon, path = serve_gpu(gpu_reserve_bytes=0, gpu_rest_s=0.5), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
    wait_until(lambda: not daemon.gpus[0].describe().awake, "the keeper does not rest")
    stranger = FakeCuda(cuda.partition(":")[2])
    stranger.use(UUID)
    stranger.vmm_release(stranger.vmm_create(0))
    taken = stranger.vmm_create((stranger.memory()[0] >> 21 << 21) - (2 << 20))
    (finding,) = check_store(daemon.store, verify=True).findings
    assert "at gpu:0 cannot be examined now: " in finding
    assert states(daemon)["gpu:0"] == "sealed"
    assert daemon.store.counters["broken"] == 0
    stranger.vmm_release(taken)
    stranger.leave()
    assert check_store(daemon.store, verify=True).findings == []


# fault (gpus): a borrower writes, `ipc` -> readers see it; `trims check --verify` retires the replica
def test_a_borrower_that_writes_to_unprotected_memory_is_found_by_a_check(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = serve_gpu(gpu_driver="ipc"), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
        tensor = weights.on_device("weight")
        ctypes.memset(tensor.address, 0xFF, 8)
        (finding,) = check_store(daemon.store, verify=True).findings
        assert "at gpu:0: its bytes have the sum (by host)" in finding
        assert states(daemon)["gpu:0"] == "draining", "no other session gets it"


# fault (gpus): a borrower writes, `vmm` -> it dies; others read on
def test_a_borrower_that_writes_to_read_only_memory_dies_and_changes_nothing(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    script = f"""
import ctypes
from trims_client import connect
session = connect({str(daemon.config.runtime_dir)!r})
weights = session.open_file({str(path)!r}, place="gpu")
ctypes.memset(weights.on_device("weight").address, 0xFF, 8)
"""
    with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
        content = read(weights.on_device("weight"))
        offender = subprocess.run([sys.executable, "-c", script], check=False, timeout=300)
        assert offender.returncode == -signal.SIGSEGV
        assert read(weights.on_device("weight")) == content
        wait_until(lambda: leases(daemon) == 1, "the dead one holds a lease")
    assert not check_store(daemon.store, verify=True).findings


# fault (gpus): one of two devices is lost -> the other serves
def test_losing_one_device_leaves_the_other_alone(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    make_devices(folder / "cuda", [Device(UUID, "Fake", TOTAL_BYTES), Device(OTHER_UUID, "Fake", TOTAL_BYTES)])
    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="gpu:1") as weights:
        session.open_file(path, place="gpu:0").close()
        kill_keeper(daemon, UUID)
        wait_until(lambda: states(daemon).get("gpu:0") is None, "its end was not noticed")
        assert leases(daemon) == 1
        assert read(weights.on_device("weight"))


# -- a daemon that is killed -------------------------------------------------------------------------------------------


# fault (gpus): the daemon ends, at any moment of a copy or under readers
@pytest.mark.parametrize("moment", list(DEVICE_MOMENTS))
def test_after_a_kill_at_any_moment_the_device_holds_true_bytes_and_nothing_more(
    moment: str,
    folder: Path,
    cuda: str,
    serve_gpu: Callable[..., Daemon],
    start_process: Callable[..., subprocess.Popen[bytes]],
    checkpoint: Callable[..., Path],
) -> None:
    path = checkpoint("m", nbytes=200_000)
    process = start_process(moment, "gpus=auto", f"cuda={cuda}", "gpu_share=1.0", "gpu_reserve_bytes=0")
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:  # a lease that ends late keeps an image: once more
        with contextlib.suppress(TrimsError), connect(folder / "run") as session:
            session.open_file(path, place="gpu").close()
            _order(folder, f"file:{path}", evict="cpu")
            session.open_file(path).close()  # down again
            _order(folder, f"file:{path}", evict="gpu")
    assert process.wait(30) == -signal.SIGKILL, "the moment never came"
    daemon = serve_gpu()
    with KeeperConnection(daemon.config.runtime_dir / f"{UUID}.sock") as keeper:
        kept = {image.key for image in keeper.hello().images}
    adopted = {replica.key for replica in daemon.store.residency.replicas.values() if replica.place == GPU}
    assert kept == adopted, "memory without a record"
    with connect(folder / "run") as session, session.open_file(path, place="gpu") as weights:
        expected = np.random.default_rng(ord("m")).random(25_000)
        assert read(weights.on_device("weight")) == expected.tobytes()
    assert not check_store(daemon.store, verify=True).findings


def _order(folder: Path, name: str, evict: str) -> None:
    import grpc

    from trims.wire import trims_pb2 as pb
    from trims.wire import trims_pb2_grpc

    with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(f"unix:{folder}/run/control.sock") as channel:
        trims_pb2_grpc.ControlStub(channel).Evict(pb.EvictRequest(name=name, place=evict), timeout=20)


# fault (gpus): the daemon ends, at any moment of a copy or under readers
def test_readers_of_a_device_do_not_notice_that_the_daemon_was_killed(
    folder: Path,
    cuda: str,
    serve_gpu: Callable[..., Daemon],
    start_process: Callable[..., subprocess.Popen[bytes]],
    checkpoint: Callable[..., Path],
) -> None:
    process = start_process("", "gpus=auto", f"cuda={cuda}", "gpu_share=1.0", "gpu_reserve_bytes=0")
    with connect(folder / "run") as session, session.open_file(checkpoint("m"), place="gpu") as weights:
        content = read(weights.on_device("weight"))
        process.kill()
        process.wait()
        assert read(weights.on_device("weight")) == content
        daemon = serve_gpu()
        wait_until(lambda: leases(daemon) == 1, "the lease was not taken up again")
        assert states(daemon)["gpu:0"] == "sealed"
        with pytest.raises(InUseError):
            daemon.store.evict(f"file:{folder / 'm.safetensors'}", GPU)
        with session.open_file(checkpoint("m"), place="gpu") as again:
            assert again.warm
            assert again.on_device("weight").address == weights.on_device("weight").address, "the same memory"


# -- a predictor that is killed ----------------------------------------------------------------------------------------


# fault (gpus): a predictor is killed with a model open -> nothing; the replica stays
@pytest.mark.parametrize("driver", ["vmm", "ipc"])
def test_a_reader_that_is_killed_leaves_its_replica_to_the_others(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], driver: str
) -> None:
    daemon, path = serve_gpu(gpu_driver=driver), checkpoint("m")
    with client(daemon, path, "hold") as other, client(daemon, path, "hold") as killed:
        assert leases(daemon) == 2
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        wait_until(lambda: leases(daemon) == 1, "a dead process holds a lease")
        assert other.poll() is None
        with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
            assert weights.warm
            assert read(weights.on_device("weight"))


# -- the work of those who read ----------------------------------------------------------------------------------------


def test_what_a_reader_needs_beside_is_kept_free_and_remembered(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], raw: Callable[[Daemon], Raw]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    reader = raw(daemon)
    lease = reader.ask({"op": "open", "id": 1, "path": str(path), "place": "gpu"})["lease"]
    before = daemon.store.residency.capacity.at[GPU].free_bytes
    said = reader.ask({"op": "workspace", "id": 2, "lease": lease, "nbytes": 60 << 20})
    assert said == {"id": 2, "workspace_bytes": 60 << 20}
    assert reader.ask({"op": "workspace", "id": 3, "lease": lease, "nbytes": 50 << 20})["workspace_bytes"] == 60 << 20
    assert before - daemon.store.residency.capacity.at[GPU].free_bytes == (60 - 48) << 20, "48 MiB are reserved anyway"
    daemon.ask_to_end()
    daemon.stop()
    second = serve_gpu()
    with connect(second.config.runtime_dir) as session, session.open_file(path, place="gpu"):
        assert second.store.residency.capacity.at[GPU].workspace_bytes == 60 << 20


@pytest.mark.parametrize(
    ("lease", "nbytes", "message"),
    [(99, 1, "has no lease 99"), (None, 1 << 40, "do not fit beside anything"), ("cpu", 1, "on a device")],
)
def test_a_report_that_cannot_be_true_changes_nothing(
    serve_gpu: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    raw: Callable[[Daemon], Raw],
    lease: int | str | None,
    nbytes: int,
    message: str,
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    reader = raw(daemon)
    place = "cpu" if lease == "cpu" else "gpu"
    granted = reader.ask({"op": "open", "id": 1, "path": str(path), "place": place})["lease"]
    number = lease if isinstance(lease, int) else granted
    error = reader.ask({"op": "workspace", "id": 2, "lease": number, "nbytes": nbytes})["error"]
    assert error["code"] == CallerError.code
    assert message in json.dumps(error)
    assert not daemon.store.residency.capacity.at[GPU].workspace_bytes


def test_what_the_manifest_states_counts_whatever_readers_measure(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], raw: Callable[[Daemon], Raw]
) -> None:
    daemon = serve_gpu()
    manifest = {"name": "m", "artifact": {"path": str(checkpoint("m"))}, "residency": {"workspace_bytes": "52MiB"}}
    daemon.registry.put(manifest, "")
    reader = raw(daemon)
    lease = reader.ask({"op": "open", "id": 1, "model": "m", "place": "gpu"})["lease"]
    assert daemon.store.residency.capacity.at[GPU].workspace_bytes == 52 << 20
    assert reader.ask({"op": "workspace", "id": 2, "lease": lease, "nbytes": 1})["workspace_bytes"] == 52 << 20
