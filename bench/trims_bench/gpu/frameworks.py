"""Experiments 6 and 7: ONNX Runtime and PyTorch over device memory of another process. Both need a real device."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.process.python import run_module
from trims_bench.child import call
from trims_bench.gpu.rig import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims.memory.cuda.drivers import Opened
    from trims_bench.gpu.rig import Rig

_MIB = 1 << 20
_ROWS = 4096
_CLIENTS = (1, 4, 8)


def onnxruntime_in_place(rig: Rig) -> dict[str, Any]:
    """Return whether a CUDA session uses an initializer over VMM memory where it lies.

    Does a change of the memory change the answer, and how much of the device does the session take; beside a session
    with weights of its own.
    """
    rig.require_torch()
    _require_onnxruntime()
    if not rig.device.vmm:
        raise UnavailableError(f"{rig.device.name} has no VMM memory")
    found: dict[str, Any] = {"nbytes": _ROWS * _ROWS * 4}
    for name, shared in (("over_vmm", True), ("weights_of_its_own", False)):
        found[name] = call(measure_session, {"kind": rig.kind, "shared": shared})
    return found


def _require_onnxruntime() -> None:
    try:
        import onnx  # noqa: F401 - makes the model
        import onnxruntime
    except ImportError as error:
        raise UnavailableError(str(error)) from error
    providers = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" not in providers:
        raise UnavailableError(
            f"onnxruntime {onnxruntime.__version__} has no CUDAExecutionProvider, only {', '.join(providers)}"
        )


def measure_session(kind: str, shared: bool) -> dict[str, Any]:
    """Time one matrix product in ONNX Runtime, with the weight in VMM memory or its own, in a process of its own."""
    import onnxruntime
    import torch

    from trims.memory.cuda.survey import survey
    from trims.testing.device_memory import Owner

    torch.zeros(1, device="cuda")
    owner = Owner(kind, "vmm")
    weight = np.full((_ROWS, _ROWS), 0.5, np.float32)
    made = owner.memory.reach(owner.memory.allocate(weight.nbytes), writable=True)
    _put(owner, made.address, weight)
    tensor = torch.as_tensor(_Array(made.address, weight.shape), device="cuda")

    def free() -> int:
        return next(found.free_bytes for found in survey(kind) if found.uuid == owner.device.uuid)

    options = onnxruntime.SessionOptions()
    value = onnxruntime.OrtValue.from_dlpack(tensor) if shared else None
    if value is not None:
        options.add_initializer("weight", value)
    feed = {"x": np.ones((1, _ROWS), np.float32)}
    before = free()
    session = onnxruntime.InferenceSession(_model(weight), options, providers=["CUDAExecutionProvider"])
    first = float(session.run(None, feed)[0][0, 0])
    taken = before - free()
    _put(owner, made.address, weight * 2)
    second = float(session.run(None, feed)[0][0, 0])
    return {"in_place": second == 2 * first, "answers": [first, second], "device_bytes_taken": taken}


class _Array:
    """float32 at an address of the device, for `torch.as_tensor`."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip


def _put(owner: Any, address: int, array: np.ndarray[Any, Any]) -> None:
    stream = owner.cuda.stream()
    owner.cuda.copy_in(address, array.ctypes.data, array.nbytes, stream)
    owner.cuda.synchronize(stream)
    owner.cuda.end_stream(stream)


def _model(weight: np.ndarray[Any, Any]) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "one-product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, _ROWS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _ROWS])],
        [numpy_helper.from_array(weight, "weight")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def torch_readers(rig: Rig) -> dict[str, Any]:
    """Bytes of the device that 1, 4 and 8 processes take, each with a PyTorch tensor over one VMM allocation.

    Each has read all of it; beside as many with a tensor of 2 MiB, which have contexts and hardly anything else.
    """
    rig.require_torch()
    if not rig.device.vmm:
        raise UnavailableError(f"{rig.device.name} has no VMM memory")
    found: dict[str, Any] = {"nbytes": rig.sizes.predictor_bytes}
    for name, nbytes in (("contexts", 2 * _MIB), ("readers", rig.sizes.predictor_bytes)):
        with rig.exporter("vmm", nbytes) as exporter:
            before, taken = rig.free_bytes(), {}
            with contextlib.ExitStack() as stack:
                for count in range(1, _CLIENTS[-1] + 1):
                    stack.enter_context(_reader(rig, exporter, nbytes))
                    if count in _CLIENTS:
                        taken[str(count)] = before - rig.free_bytes()
        found[name] = taken
    return found


@contextlib.contextmanager
def _reader(rig: Rig, exporter: Any, nbytes: int) -> Iterator[None]:
    """A process that has summed the allocation and holds it."""
    export = exporter.export()
    try:
        words = ["read", rig.kind, rig.device.uuid, str(export.fd), str(export.size_bytes), str(nbytes)]
        command = run_module(__name__, *words)
        process = subprocess.Popen(
            command, pass_fds=[export.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    finally:
        export.close()
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("sum "), "the reader ended without a sum"
        yield
    finally:
        process.communicate()


def torch_writes(rig: Rig) -> dict[str, Any]:
    """Report what happens to a PyTorch process that adds in place to a VMM allocation which it has mapped read-only."""
    rig.require_torch()
    with rig.exporter("vmm", 2 * _MIB) as exporter:
        export = exporter.export()
        try:
            words = ["write", rig.kind, rig.device.uuid, str(export.fd), str(export.size_bytes), str(2 * _MIB)]
            done = subprocess.run(
                run_module(__name__, *words), pass_fds=[export.fd], stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        finally:
            export.close()
        said = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return {"status": done.returncode, "said": said, "owner_intact": exporter.intact()}


@contextlib.contextmanager
def _tensor(kind: str, uuid: str, fd: str, size_bytes: str, nbytes: str) -> Iterator[Any]:
    """Yield a float32 tensor over an allocation that another process has exported."""
    import torch

    from trims.memory.cuda.connect import connect
    from trims.memory.cuda.drivers import Export, device_memory

    torch.zeros(1, device="cuda")
    cuda = connect(kind)
    memory = device_memory("vmm", cuda, cuda.use(uuid))
    export = Export("vmm", uuid, int(size_bytes), fd=int(fd), cuda=kind)
    opened: Opened = memory.open(export)
    export.close()
    yield torch.as_tensor(_Array(opened.address, (int(nbytes) // 4,)), device="cuda")
    memory.close(opened)


def _read(*allocation: str) -> None:
    import torch

    with _tensor(*allocation) as tensor:
        print("sum", float(tensor.view(torch.int32).max()), flush=True)
        sys.stdin.read()


def _write(*allocation: str) -> None:
    import torch

    with _tensor(*allocation) as tensor:
        tensor.add_(1.0)
        torch.cuda.synchronize()
        print("it was not stopped", flush=True)


if __name__ == "__main__":
    {"read": _read, "write": _write}[sys.argv[1]](*sys.argv[2:])
