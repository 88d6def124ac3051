"""Requests that are answered from a device: on the fake, and the same on a real one (`make gpu-check`)."""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from endpoints import Endpoint
from on_device import reached
from serving import Serving, serving_in

from trims.cli.main import main
from trims.control import admin
from trims.memory.cuda.connect import connect as connect_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

torch = pytest.importorskip("torch", reason="missing framework: torch")
pytestmark = pytest.mark.usefixtures("forked_starts")
#: One that frameworks compute on, which the stand-in for the driver is not.
ON_DEVICE = pytest.param("driver", marks=[pytest.mark.gpu, pytest.mark.kernels])
IMAGE = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)


@pytest.fixture(scope="module", params=["fake", ON_DEVICE])
def kind(request: pytest.FixtureRequest, module_folder: Path) -> str:
    return reached(request, module_folder)


@pytest.fixture(scope="module")
def daemon(module_folder: Path, kind: str) -> Iterator[Serving]:
    """A daemon with the device, in a process of its own, as its memory outlives a test."""
    device = connect_driver(kind).devices()[0]
    variables = {"TRIMS_CPU_CAPACITY_BYTES": "256MiB", "TRIMS_GPU_RESERVE_BYTES": "64MiB", "TRIMS_TRUST": "verified"}
    with serving_in(
        module_folder / kind.partition(":")[0], TRIMS_GPUS=device.uuid, TRIMS_CUDA=kind, **variables
    ) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def endpoint(daemon: Serving) -> Iterator[Endpoint]:
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


def register(daemon: Serving, path: Path, **fields: Any) -> None:
    artifact = {"path": str(path), **fields.pop("artifact", {})}
    put(daemon, {"name": "m", "artifact": artifact, "residency": {"place": "gpu"}, **fields}, path.parent)


def put(daemon: Serving, manifest: dict[str, Any], folder: Path) -> None:
    """Register a model in place of the one of the test before."""
    (folder / "manifest.yaml").write_text(json.dumps(manifest))
    with admin(daemon.config.runtime_dir) as control:
        control.add(folder / "manifest.yaml", replace=True, lazy=True)


def image() -> dict[str, Any]:
    return {"name": "image", "shape": list(IMAGE.shape), "datatype": "FP32", "data": IMAGE.ravel().tolist()}


def test_a_module_of_torch_answers(daemon: Serving, endpoint: Endpoint, folder: Path) -> None:
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
def test_half_types_stay_as_they_are(daemon: Serving, endpoint: Endpoint, folder: Path, dtype: str) -> None:
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


def test_a_graph_of_onnx_answers(daemon: Serving, endpoint: Endpoint, folder: Path) -> None:
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
def test_a_folder_of_hugging_face_answers(daemon: Serving, endpoint: Endpoint, folder: Path, architecture: str) -> None:
    pytest.importorskip("transformers", reason="missing framework: transformers")
    from tiny_models import named, save

    tiny = named(architecture)
    save(tiny, folder / "m")
    register(daemon, folder / "m", artifact={"format": "transformers"}, framework={"name": "transformers"})
    check_places(endpoint, {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the film is good"]})


def text(name: str = "text", *elements: str) -> dict[str, Any]:
    data = list(elements or ("the film is good",))
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": data}


def media(name: str, data: bytes) -> dict[str, Any]:
    return text(name, base64.b64encode(data).decode())


def a_picture() -> bytes:
    image = pytest.importorskip("PIL.Image", reason="missing package: pillow")
    out = io.BytesIO()
    image.new("RGB", (40, 40), (200, 30, 60)).save(out, "PNG")
    return out.getvalue()


def a_sound() -> dict[str, Any]:
    samples = np.sin(np.arange(8000) / 20)
    return {"name": "samples", "shape": [1, 8000], "datatype": "FP32", "data": samples.tolist()}


#: Architecture -> inputs of a request; one for each task that the CPU has, beside those above.
TASKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "BertForTokenClassification": lambda: [text()],
    "BertForMaskedLM": lambda: [text("text", "the [MASK] is good")],
    "BartForSequenceClassification": lambda: [text(), text("candidate_labels", "good", "bad")],
    "BertModel": lambda: [text()],
    "T5ForConditionalGeneration": lambda: [text()],
    "BertForQuestionAnswering": lambda: [text("question", "what is good"), text("context", "the film is good")],
    "ViTForImageClassification": lambda: [media("image", a_picture())],
    "Wav2Vec2ForCTC": lambda: [a_sound()],
}


@pytest.mark.parametrize("kind", [pytest.param("fake", marks=pytest.mark.soak), ON_DEVICE], indirect=True)
@pytest.mark.timeout(300)
def test_every_task_of_hugging_face_answers(daemon: Serving, endpoint: Endpoint, folder: Path) -> None:
    pytest.importorskip("transformers", reason="missing framework: transformers")
    from tiny_models import named, save

    for number, (architecture, inputs) in enumerate(TASKS.items()):
        tiny = named(architecture)
        save(tiny, folder / f"t{number}")
        manifest = {
            "name": f"t{number}",
            "artifact": {
                "path": str(folder / f"t{number}"), "format": "transformers", "options": {"task": tiny.task},
            },
            "framework": {"name": "transformers"}, "residency": {"place": "gpu"},
        }  # fmt: skip
        put(daemon, manifest, folder)
        found = {}
        for place in ("gpu", "cpu"):
            asked = {"inputs": inputs(), "parameters": {"place": place}}
            status, answer = endpoint.ask("POST", f"/v2/models/t{number}/infer", asked)
            assert status == 200, (architecture, answer)
            found[answer["parameters"]["place"]] = [each["shape"] for each in answer["outputs"]]
        assert found["gpu:0"] == found["cpu"], architecture


def test_every_door_answers_from_the_device(daemon: Serving, endpoint: Endpoint, folder: Path) -> None:
    pytest.importorskip("transformers", reason="missing framework: transformers")
    from tiny_models import named, save
    from trims_predictors.endpoint.grpc import inference_pb2 as pb
    from trims_predictors.endpoint.grpc import inference_pb2_grpc

    save(named("GPT2LMHeadModel"), folder / "m")
    register(daemon, folder / "m", artifact={"format": "transformers"}, framework={"name": "transformers"})
    said = "the film is good"
    generated = endpoint.ask("POST", "/v2/models/m/generate", {"text_input": said, "max_new_tokens": 3})
    assert (generated[0], generated[1]["text_output"] != "") == (200, True), generated
    status, completed = endpoint.ask("POST", "/v1/completions", {"model": "m", "prompt": said, "max_tokens": 3})
    assert (status, completed["usage"]["completion_tokens"]) == (200, 3), completed
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        given = pb.ModelInferRequest(model_name="m")
        given.parameters["place"].string_param = "gpu,cpu"
        tensor = given.inputs.add(name="text", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(said.encode())
        answer = inference_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(given, timeout=60)
    assert answer.parameters["place"].string_param == "gpu:0"


def test_a_function_answers_from_the_device(daemon: Serving, endpoint: Endpoint, folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2, 4), "bias": torch.zeros(2)}, folder / "m.safetensors")
    (folder / "own_line.py").write_text(
        "import torch\n\n\ndef line():\n    return torch.nn.Linear(4, 2)\n\n\n"
        "def handler(model, event):\n    device = model.weight.device\n"
        "    found = model(torch.tensor([event], device=device, dtype=torch.float32))\n"
        "    return {'sum': float(found.sum()), 'device': str(device)}\n"
    )
    builder = {"options": {"module": "own_line:line"}}
    predictor = {"handler": "own_line.py:handler", "options": {"as": "torch"}}
    register(daemon, folder / "m.safetensors", artifact=builder, framework={"name": "torch"}, predictor=predictor)
    for _ in range(2):
        status, answer = endpoint.ask("POST", "/functions/m", [1, 2, 3, 4])
        assert (status, answer["sum"]) == (200, 20.0), answer


def test_a_command_names_its_places(
    daemon: Serving, endpoint: Endpoint, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    save_file(torch.nn.Linear(4, 2).state_dict(), folder / "m.safetensors")
    (folder / "own_line.py").write_text("import torch\n\n\ndef line():\n    return torch.nn.Linear(4, 2)\n")
    register(
        daemon, folder / "m.safetensors", artifact={"options": {"module": "own_line:line"}},
        framework={"name": "torch"}, residency={},
    )  # fmt: skip
    runtime = ["--runtime-dir", str(daemon.config.runtime_dir)]
    for where in ([], ["--endpoint", "none"]):
        for place, found in (("gpu:9,gpu,cpu", "gpu:0"), ("cpu", "cpu")):
            words = ["run", "m", "input=[[1.0, 2.0, 3.0, 4.0]]", "--place", place, "--json", *where]
            assert main([*runtime, *words]) == 0
            assert json.loads(capsys.readouterr().out)["parameters"]["place"] == found
    assert main([*runtime, "run", "m", "input=[[1.0]]", "--place", "gpu:9"]) == 1
    assert "no tier gpu:9" in capsys.readouterr().err


def test_an_evaluation_starts_on_the_device_in_each_way(
    daemon: Serving, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    save_file(torch.nn.Linear(4, 2).state_dict(), folder / "m.safetensors")
    (folder / "own_line.py").write_text("import torch\n\n\ndef line():\n    return torch.nn.Linear(4, 2)\n")
    inputs = [{"name": "input", "dtype": "FP32", "shape": [1, 4]}]
    register(
        daemon, folder / "m.safetensors", artifact={"options": {"module": "own_line:line"}},
        framework={"name": "torch"}, inputs=inputs,
    )  # fmt: skip
    runtime = ["--runtime-dir", str(daemon.config.runtime_dir)]
    words = ["eval", "m", "--repeat", "1", "--from", "gpu", "--how", "fresh,template,spare,hot", "--json"]
    assert main([*runtime, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["way"] for row in found["rows"]} == {"fresh", "template", "spare", "hot"}, found["discarded"]


@pytest.mark.parametrize("kind", [ON_DEVICE], indirect=True)
@pytest.mark.parametrize(("order", "status"), [("fault", 500), ("memory", 503)])
def test_a_kernel_that_fails_costs_its_own_request(
    daemon: Serving, endpoint: Endpoint, folder: Path, order: str, status: int
) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2, 4), "bias": torch.zeros(2)}, folder / "m.safetensors")
    (folder / "own_faults.py").write_text(
        "import torch\n\n\ndef line():\n    return torch.nn.Linear(4, 2)\n\n\n"
        "def handler(model, event):\n    device = model.weight.device\n"
        "    if event == 'fault':\n        at = torch.tensor([1 << 20], device=device)\n"
        "        float(torch.zeros(1, device=device)[at])\n"
        "    if event == 'memory':\n        torch.empty(1 << 50, dtype=torch.uint8, device=device)\n"
        "    return float(model(torch.ones(1, 4, device=device)).sum())\n"
    )
    builder = {"options": {"module": "own_faults:line"}}
    predictor = {"handler": "own_faults.py:handler", "options": {"as": "torch"}}
    register(daemon, folder / "m.safetensors", artifact=builder, framework={"name": "torch"}, predictor=predictor)
    assert endpoint.ask("POST", "/functions/m", "")[1] == 8.0
    assert endpoint.ask("POST", "/functions/m", order)[0] == status
    assert endpoint.ask("POST", "/functions/m", "")[1] == 8.0
