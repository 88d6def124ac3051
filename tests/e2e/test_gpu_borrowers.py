"""Frameworks over models on a GPU, end to end: daemon, keeper and borrowers, on the fake, which frameworks can read."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from on_device import UUID, client, kill_keeper, read, say
from trims_client import connect
from trims_client.mapping import dlpack

from trims.core.errors import CallerError, CapacityError, InUseError, NotSupportedError
from trims.core.place import GPU
from trims.testing import torch_modules
from trims.testing.fake_cuda import FakeCuda, lose_device
from trims.testing.in_place import reads_in_place

pytestmark = pytest.mark.usefixtures("forked_starts")
torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx_models import attention, convolution, feeds  # noqa: E402
from torch_images import IMAGES, WORDS  # noqa: E402
from trims_client.frameworks import onnxruntime as trims_ort  # noqa: E402
from trims_client.frameworks import torch as trims_torch  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon

PREFERRED = ("gpu", "cpu")


@pytest.fixture(params=["vmm", "ipc"])
def gpu_daemon(request: pytest.FixtureRequest, serve_gpu: Callable[..., Daemon]) -> Daemon:
    return serve_gpu(gpu_driver=request.param)


def register(daemon: Daemon, path: Path, **more: Any) -> None:
    residency = {"residency": more.pop("residency")} if "residency" in more else {}
    daemon.registry.put({"name": "m", "artifact": {"path": str(path), **more}, **residency}, "")


def built(build: str) -> torch.nn.Module:
    torch.manual_seed(1)
    module: torch.nn.Module = getattr(torch_modules, build)()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)
    return module.eval()


# -- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "given", "way"), [("conv_net", IMAGES, "module"), ("tied_model", WORDS, "load_into")]
)
def test_a_module_on_a_device_answers_as_the_framework_and_as_the_host(
    gpu_daemon: Daemon, folder: Path, build: str, given: torch.Tensor, way: str
) -> None:
    own = built(build)
    torch.save(own.state_dict(), folder / "m.pt")
    register(gpu_daemon, folder / "m.pt", options={"module": f"trims.testing.torch_modules:{build}"})
    answers = []
    with connect(gpu_daemon.config.runtime_dir) as session:
        for place in ("gpu", "cpu"):
            with session.open("m", place=place) as weights:
                assert weights.place.partition(":")[0] == place
                if way == "module":
                    module = trims_torch.module(weights)
                else:
                    module = trims_torch.load_into(built(build), weights, strict=False)
            answers.append(module(given).detach())
            del module
            gc.collect()
    assert torch.equal(answers[0], own(given))
    assert torch.equal(answers[0], answers[1])
    assert dlpack.collect() == 0


def test_the_lease_ends_with_the_last_tensor(serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]) -> None:
    daemon, path = serve_gpu(gpu_driver="vmm"), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session:
        with session.open_file(path, place="gpu") as weights:
            tensors = trims_torch.state_dict(weights)
        last = tensors.pop("step")
        tensors.clear()
        with pytest.raises(InUseError):
            daemon.store.evict(f"file:{path}", GPU)
        assert int(last) >= 0
        del last
        wait_until(lambda: not daemon.store.residency.leases.by_number, "the session gives back what was given up")
        daemon.store.evict(f"file:{path}", GPU)
    assert dlpack.collect() == 0


SECOND = """
import sys
import torch
from trims_client import connect
from trims_client.frameworks import torch as trims_torch
with connect(sys.argv[1]) as session, session.open_file(sys.argv[2], place="gpu") as weights:
    print(weights.warm, float(trims_torch.state_dict(weights)["weight"].sum()))
"""


def test_two_processes_share_one_copy(gpu_daemon: Daemon, cuda: str, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m", nbytes=32 << 20)
    watcher = FakeCuda(cuda.partition(":")[2])
    (device,) = watcher.devices()
    with connect(gpu_daemon.config.runtime_dir) as session, session.open_file(path, place="gpu") as weights:
        total = float(trims_torch.state_dict(weights)["weight"].sum())
        free = watcher.free_bytes(device)
        command = [sys.executable, "-c", SECOND, str(gpu_daemon.config.runtime_dir), str(path)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.stdout.split() == ["True", str(total)]
        assert watcher.free_bytes(device) == free
        gc.collect()


# -- ONNX Runtime ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [convolution, attention])
def test_a_session_on_a_device_answers_as_on_the_host(
    gpu_daemon: Daemon, folder: Path, make: Callable[[Path], Path]
) -> None:
    """`residency.place` is a GPU, so the converter keeps away from what only the processor has."""
    main = make(folder)
    register(gpu_daemon, main, residency={"place": "gpu"})
    answers = []
    with connect(gpu_daemon.config.runtime_dir) as session:
        for place in (None, "cpu"):
            with session.open("m", place=place) as weights:
                assert weights.place == (place or "gpu:0")
                runtime = trims_ort.session(weights)
            answers.append(runtime.run(None, feeds(main))[0])
            del runtime
            gc.collect()
    np.testing.assert_array_equal(*answers)


def follows(cuda: FakeCuda, address: int, runtime: Any, given: dict[str, Any]) -> bool:
    changed = np.float32(100).tobytes()
    return reads_in_place(cuda, address, changed, lambda: bytes(runtime.run(None, given)[0].tobytes()))


def test_initializers_are_used_in_place(serve_gpu: Callable[..., Daemon], folder: Path, cuda: str) -> None:
    """`ipc`: what is borrowed can be written, so a changed byte shows whether it is read where it lies."""
    daemon, main = serve_gpu(gpu_driver="ipc"), convolution(folder)
    register(daemon, main, residency={"place": "gpu"})
    writer = FakeCuda(cuda.partition(":")[2])
    writer.use(UUID)
    with connect(daemon.config.runtime_dir) as session, session.open("m") as weights:
        assert follows(writer, weights.on_device("fc").address, trims_ort.session(weights), feeds(main))
        gc.collect()
    writer.leave()


def test_a_model_optimized_for_the_processor_is_refused_on_a_device_with_the_way_out(
    serve_gpu: Callable[..., Daemon], folder: Path
) -> None:
    daemon, main = serve_gpu(), convolution(folder)
    with connect(daemon.config.runtime_dir) as session, session.open_file(main, place="gpu") as weights:
        with pytest.raises(NotSupportedError, match="say `optimize: basic` in the options of its manifest's artifact"):
            trims_ort.session(weights)
        with session.open_file(main, place="cpu") as on_host:
            trims_ort.session(on_host).run(None, feeds(main))
        gc.collect()


# -- where it cannot be ------------------------------------------------------------------------------------------------


def test_without_a_device_the_next_place_serves_and_the_daemon_counts_it(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(gpus="none")
    with connect(daemon.config.runtime_dir) as session:
        with session.open_file(checkpoint("m"), place=PREFERRED) as weights:
            assert weights.place == "cpu"
            assert weights.fell_back is not None
            assert weights.fell_back.startswith("gpu: ")
        assert daemon.store.counters["fallbacks"] == 1
        with session.open_file(checkpoint("m"), place="cpu") as weights:
            assert weights.fell_back is None
        with pytest.raises(NotSupportedError):
            session.open_file(checkpoint("m"), place="gpu")
    assert daemon.store.counters["fallbacks"] == 1


def test_a_full_device_falls_back_and_one_with_room_does_not(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve_gpu()
    held, other = checkpoint("a", nbytes=120 << 20), checkpoint("b", nbytes=120 << 20)
    with connect(daemon.config.runtime_dir) as session:
        with session.open_file(held, place=PREFERRED) as weights:
            assert (weights.place, weights.fell_back) == ("gpu:0", None)
            with session.open_file(other, place=PREFERRED) as fallen:
                assert fallen.place == "cpu"
                assert "no room at gpu:0" in str(fallen.fell_back)
            with pytest.raises(CapacityError):
                session.open_file(other, place="gpu")
        with session.open_file(other, place=PREFERRED, deadline_s=60) as weights:
            assert weights.place == "gpu:0"


def test_a_model_that_is_being_evicted_under_others_falls_back(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="gpu"):
        daemon.store.evict(f"file:{path}", GPU, drain=True)
        with connect(daemon.config.runtime_dir) as other, other.open_file(path, place=PREFERRED) as weights:
            assert weights.place == "cpu"
            assert "waits for its last reader" in str(weights.fell_back)


def test_a_lost_device_falls_back(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon = serve_gpu()
    lose_device(folder / "cuda", UUID)
    with connect(daemon.config.runtime_dir) as session, session.open_file(checkpoint("m"), place=PREFERRED) as weights:
        assert weights.place == "cpu"
        assert UUID in str(weights.fell_back)
    (folder / "cuda" / f"lost.{UUID}").unlink()


def test_a_process_that_cannot_reach_the_device_falls_back_and_holds_nothing_there(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon, path = serve_gpu(), checkpoint("m")
    with client(daemon, path, "close") as process:
        say(process, "closed")
        described = (folder / "cuda" / "devices.json").read_text()
        (folder / "cuda" / "devices.json").write_text("[]")
        with connect(daemon.config.runtime_dir) as session, session.open_file(path, place=PREFERRED) as weights:
            assert weights.place == "cpu"
            assert "cannot be opened here" in str(weights.fell_back)
            assert daemon.store.counters["fallbacks"] == 1
        (folder / "cuda" / "devices.json").write_text(described)


# -- bad days ----------------------------------------------------------------------------------------------------------


def test_a_lost_keeper_is_heard_of_and_the_bytes_stay_readable(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon, path, told = serve_gpu(gpu_driver="vmm"), checkpoint("m"), []

    def open_in(session: Session) -> Any:
        return session.open_file(path, place="gpu")

    with connect(daemon.config.runtime_dir, on_lost=told.append) as session:
        before = open_in(session)
        content = read(before.on_device("weight"))
        tensors = trims_torch.state_dict(before)
        kill_keeper(daemon)
        wait_until(lambda: bool(told), "on_lost was not called")
        assert before.lost
        assert told == [(before.lost, str(path), before._attachment.mapping.key, "gpu:0")]
        assert tensors["weight"].numpy().tobytes() == content, "a descriptor keeps the memory"
        with session.open_file(path, place="gpu", deadline_s=60) as after:
            assert after.lost is None
            assert read(after.on_device("weight")) == content
            assert after.on_device("weight").address != before.on_device("weight").address
        del tensors
        before.close()


def test_workspace_is_told_to_the_daemon(serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path]) -> None:
    daemon = serve_gpu()
    with connect(daemon.config.runtime_dir) as session:
        with session.open_file(checkpoint("m"), place="gpu") as weights:
            weights.report_workspace(60 << 20)
            assert daemon.store.residency.capacity.at[GPU].workspace_bytes == 60 << 20
            with pytest.raises(CallerError, match="do not fit"):
                weights.report_workspace(1 << 40)
        with session.open_file(checkpoint("m"), place="cpu") as weights, pytest.raises(NotSupportedError):
            weights.report_workspace(1)
