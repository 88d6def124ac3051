"""PyTorch, cupy and ONNX Runtime over a model on a device: on the fake, and the same on a real one (`make gpu-check`).

Borrowers are processes of their own: they alone make contexts. A framework that is not installed, or not built for
CUDA, is a skip that says so. A refusal by trims is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from on_device import reached, starter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

HEAD = """
import sys
from trims_client import connect
kind, runtime_dir, path = sys.argv[1:]
lacks = missing(kind)
if lacks:
    print("skip: missing framework:", lacks)
    sys.exit()
with connect(runtime_dir) as session:
    opened = session.open(path) if path == "m" else session.open_file(path, place="gpu")
    with opened as weights:
        borrow(kind, weights, path)
print("done")
"""
TORCH = """
def missing(kind):
    try:
        import torch
    except ImportError as error:
        return str(error)
    if kind == "driver" and not torch.version.cuda:
        return f"torch {torch.__version__} was not built for CUDA"

def borrow(kind, weights, path):
    import torch
    from safetensors.torch import load_file
    from trims_client.frameworks import torch as trims_torch
    found, own = trims_torch.state_dict(weights), load_file(path)
    device = "cpu" if kind.startswith("fake") else "cuda"
    for name, tensor in own.items():
        assert found[name].device.type == device
        assert found[name].data_ptr() == weights.on_device(name).address
        assert torch.equal(found[name].cpu(), tensor), name
    linear = torch.nn.Linear(64, 32, device="meta")
    trims_torch.load_into(linear, weights, strict=False)
    given = torch.linspace(-1, 1, 64, device=device).repeat(3, 1)
    again = torch.nn.Linear(64, 32)
    again.load_state_dict({name: own[name] for name in ("weight", "bias")})
    assert torch.equal(linear(given), again.to(device)(given))
    assert torch.equal(found["half"].float().cpu(), own["half"].float())
    if device == "cuda":
        with trims_torch.measured_workspace(weights):
            linear(given.repeat(1000, 1))
"""
CUPY = """
def missing(kind):
    try:
        import cupy
    except ImportError as error:
        return str(error)

def borrow(kind, weights, path):
    import numpy
    from safetensors.numpy import load_file
    from trims.core.errors import NotSupportedError
    from trims_client.frameworks import cupy as trims_cupy
    found = trims_cupy.arrays(weights)
    assert set(found) - {"small"} == {"weight", "bias"}, "at most float8, which cupy 14.0 has not, is left out"
    own = load_file(path)
    for name, array in found.items():
        assert array.data.ptr == weights.on_device(name).address
        assert array.dtype == own[name].dtype
        numpy.testing.assert_array_equal(array.get().view("u1"), own[name].view("u1"))
    try:
        trims_cupy.arrays(weights, ["small"])
    except NotSupportedError as error:
        assert "small" not in found and "F8_E4M3" in str(error)
    else:
        assert "small" in found, "a dtype that was left out is refused by name"
"""
ONNXRUNTIME = """
def missing(kind):
    try:
        import onnxruntime
    except ImportError as error:
        return str(error)
    if kind == "driver" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return f"onnxruntime {onnxruntime.__version__} has no CUDAExecutionProvider"

def borrow(kind, weights, path):
    import ctypes
    import numpy
    import onnxruntime
    from trims.memory.cuda.connect import connect as connect_driver
    from trims.testing.in_place import reads_in_place
    from trims_client.frameworks import onnxruntime as trims_ort
    cuda = connect_driver(kind)
    cuda.use(weights.device)
    runtime = trims_ort.session(weights)
    given = {"x": numpy.ones((1, 4096), numpy.float32)}
    answer = lambda: runtime.run(None, given)[0].tobytes()
    wanted = numpy.arange(4096, dtype=numpy.float32) + 1
    numpy.testing.assert_array_equal(runtime.run(None, given)[0][0], wanted)
    assert runtime.host_copies == (), runtime.host_copies
    assert reads_in_place(cuda, weights.on_device("w").address, numpy.float32(7).tobytes(), answer)
"""


#: One that frameworks compute on, which the stand-in for the driver is not.
ON_DEVICE = pytest.param("driver", marks=[pytest.mark.gpu, pytest.mark.kernels])


@pytest.fixture(params=["fake", ON_DEVICE])
def kind(request: pytest.FixtureRequest, folder: Path) -> str:
    return reached(request, folder)


@pytest.fixture
def start(serve: Callable[..., Daemon], kind: str) -> Callable[..., Daemon]:
    return starter(serve, kind)


def run(script: str, kind: str, daemon: Daemon, path: Path | str) -> None:
    """In a process of its own; what it lacks is a skip."""
    command = [sys.executable, "-c", script + HEAD, kind, str(daemon.config.runtime_dir), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    if last.startswith("skip:"):
        pytest.skip(last.removeprefix("skip: "))
    assert last == "done"


def framework(name: str) -> Any:
    return pytest.importorskip(name, reason=f"missing framework: {name}")


def checkpoint(folder: Path) -> Path:
    torch, save = framework("torch"), framework("safetensors.torch").save_file
    linear = torch.nn.Linear(64, 32)
    half = torch.linspace(-4, 4, 1 << 16).to(torch.bfloat16)
    save({**linear.state_dict(), "half": half}, folder / "m.safetensors")
    return folder / "m.safetensors"


def checkpoint_for_cupy(folder: Path) -> Path:
    """Made without PyTorch: two tensors that cupy has a dtype for, and one that only newer versions have one for."""
    rng = np.random.default_rng(7)
    tensors: dict[str, Any] = {"weight": rng.random((32, 64), np.float32), "bias": rng.random(32, np.float32)}
    ml_dtypes = framework("ml_dtypes")
    tensors["small"] = np.ones(16, ml_dtypes.float8_e4m3fn)
    framework("safetensors.numpy").save_file(tensors, folder / "m.safetensors")
    return folder / "m.safetensors"


@pytest.mark.parametrize("driver", ["vmm", "ipc"])
def test_tensors_are_the_shared_bytes_and_compute_as_the_frameworks_own(
    start: Callable[..., Daemon], kind: str, folder: Path, driver: str
) -> None:
    run(TORCH, kind, start(driver), checkpoint(folder))


@pytest.mark.parametrize("kind", [ON_DEVICE], indirect=True)
@pytest.mark.parametrize("driver", ["vmm", "ipc"])
def test_arrays_of_cupy_are_the_shared_bytes(
    start: Callable[..., Daemon], kind: str, folder: Path, driver: str
) -> None:
    run(CUPY, kind, start(driver), checkpoint_for_cupy(folder))


def test_onnxruntime_computes_on_the_shared_bytes(start: Callable[..., Daemon], kind: str, folder: Path) -> None:
    """`ipc`, whose memory a borrower can write: the answer follows a changed byte."""
    onnx = framework("onnx")
    shape = [1, 4096]
    ends = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)] for name in ("x", "y")]
    weight = onnx.numpy_helper.from_array(np.arange(4096, dtype=np.float32).reshape(shape), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "g", *ends, [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    daemon = start("ipc")
    artifact = {"path": str(folder / "m.onnx"), "options": {"optimize": "basic"}}
    daemon.registry.put({"name": "m", "artifact": artifact, "residency": {"place": "gpu"}}, "")
    run(ONNXRUNTIME, kind, daemon, "m")
