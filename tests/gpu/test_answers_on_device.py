"""Requests that are answered from a device: on the fake, and the same on a real one (`make gpu-check`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from endpoints import Endpoint
from on_device import reached, starter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

torch = pytest.importorskip("torch", reason="missing framework: torch")
#: One that frameworks compute on, which the stand-in for the driver is not.
ON_DEVICE = pytest.param("driver", marks=[pytest.mark.gpu, pytest.mark.kernels])
IMAGE = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)


@pytest.fixture(params=["fake", ON_DEVICE])
def kind(request: pytest.FixtureRequest, folder: Path) -> str:
    return reached(request, folder)


@pytest.fixture
def daemon(serve: Callable[..., Daemon], kind: str) -> Daemon:
    return starter(serve, kind)()


@pytest.fixture
def endpoint(daemon: Daemon) -> Iterator[Endpoint]:
    """An endpoint whose predictors may lock files of the fake device."""
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process")
    yield made
    made.end()


def ask(endpoint: Endpoint, tensor: dict[str, Any], place: str | None) -> dict[str, Any]:
    """Return an answer; `place` None asks for what the manifest says."""
    parameters = {} if place is None else {"place": place}
    status, answer = endpoint.ask("POST", "/v2/models/m/infer", {"inputs": [tensor], "parameters": parameters})
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def check_places(endpoint: Endpoint, tensor: dict[str, Any], expected: np.ndarray[Any, Any] | None = None) -> None:
    """Compare the first output from the device, by the manifest and by the request, with that from the CPU."""
    found = {}
    for asked, place in ((None, "gpu:0"), ("gpu:0", "gpu:0"), ("cpu", "cpu")):
        answer = ask(endpoint, tensor, asked)
        assert answer["parameters"]["place"] == place
        output = answer["outputs"][0]
        found[asked] = np.array(output["data"]).reshape(output["shape"])
    for values in found.values():
        if values.dtype.kind == "U":
            assert values.tolist() == found["cpu"].tolist()
        else:
            np.testing.assert_allclose(values, found["cpu"] if expected is None else expected, rtol=1e-3, atol=1e-4)


def register(daemon: Daemon, path: Path, **fields: Any) -> None:
    artifact = {"path": str(path), **fields.pop("artifact", {})}
    daemon.registry.put({"name": "m", "artifact": artifact, "residency": {"place": "gpu"}, **fields}, str(path.parent))


def image() -> dict[str, Any]:
    return {"name": "image", "shape": list(IMAGE.shape), "datatype": "FP32", "data": IMAGE.ravel().tolist()}


def test_a_module_of_torch_answers(daemon: Daemon, endpoint: Endpoint, folder: Path) -> None:
    from safetensors.torch import save_file

    from trims.testing.torch_modules import conv_net

    module = conv_net().eval()
    save_file(module.state_dict(), folder / "m.safetensors")
    builder = {"options": {"module": "trims.testing.torch_modules:conv_net"}}
    register(daemon, folder / "m.safetensors", artifact=builder, framework={"name": "torch"})
    with torch.inference_mode():
        expected = module(torch.from_numpy(IMAGE)).numpy()
    check_places(endpoint, image(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_stay_as_they_are(daemon: Daemon, endpoint: Endpoint, folder: Path, dtype: str) -> None:
    from safetensors.torch import save_file

    weights = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
    save_file({name: each.to(getattr(torch, dtype)) for name, each in weights.items()}, folder / "m.safetensors")
    (folder / "own_halves.py").write_text(
        f"import torch\n\n\ndef line():\n    return torch.nn.Linear(4, 2, dtype=torch.{dtype})\n"
    )
    builder = {"options": {"module": "own_halves:line"}}
    register(daemon, folder / "m.safetensors", artifact=builder, framework={"name": "torch"})
    kind = {"float16": "FP16", "bfloat16": "BF16"}[dtype]
    tensor = {"name": "input", "shape": [1, 4], "datatype": kind, "data": [1, 2, 3, 4]}
    answer = ask(endpoint, tensor, None)
    assert (answer["parameters"]["place"], answer["outputs"][0]["datatype"]) == ("gpu:0", kind)
    assert answer["outputs"][0]["data"] == [10.0, 10.0]


def test_a_graph_of_onnx_answers(daemon: Daemon, endpoint: Endpoint, folder: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="missing framework: onnx")
    ends = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4096])] for name in ("image", "y")]
    weight = onnx.numpy_helper.from_array(np.arange(4096, dtype=np.float32).reshape(1, 4096), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["image", "w"], ["y"])], "g", *ends, [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    register(daemon, folder / "m.onnx", artifact={"options": {"optimize": "basic"}})
    tensor = {"name": "image", "shape": [1, 4096], "datatype": "FP32", "data": [1] * 4096}
    check_places(endpoint, tensor, np.arange(4096, dtype=np.float32)[None] + 1)


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "GPT2LMHeadModel"])
def test_a_folder_of_hugging_face_answers(daemon: Daemon, endpoint: Endpoint, folder: Path, architecture: str) -> None:
    pytest.importorskip("transformers", reason="missing framework: transformers")
    from tiny_models import named, save

    tiny = named(architecture)
    save(tiny, folder / "m")
    register(daemon, folder / "m", artifact={"format": "transformers"}, framework={"name": "transformers"})
    check_places(endpoint, {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the film is good"]})
