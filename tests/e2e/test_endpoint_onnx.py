"""ONNX models through an endpoint: what answers have of graphs whose outputs are no tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import onnx_models
import pytest
from endpoints import Endpoint
from looking import wait_until
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc.inference_pb2_grpc import GRPCInferenceServiceStub

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

X = {"name": "X", "datatype": "FP32", "shape": [2, 2], "data": [2, 1, 0, 1]}


@pytest.fixture
def endpoint(daemon: Daemon, folder: Path) -> Iterator[Endpoint]:
    """One for a classifier as scikit-learn's exporter makes it."""
    with admin(daemon.config.runtime_dir) as control:
        control.add(onnx_models.classifier(folder / "c.onnx"), name="c")
    made = Endpoint(daemon.config.runtime_dir)
    yield made
    made.end()


def test_an_input_without_a_shape_is_served_and_one_of_bf16_is_not_implemented(
    endpoint: Endpoint, daemon: Daemon, folder: Path
) -> None:
    helper, kinds = onnx_models.helper, onnx_models.TensorProto
    for name, kind in (("free", kinds.FLOAT), ("brain", kinds.BFLOAT16)):
        inputs = [helper.make_tensor_value_info("x", kind, None)]
        outputs = [helper.make_tensor_value_info("y", kind, None)]
        onnx_models.save(folder / f"{name}.onnx", [helper.make_node("Identity", ["x"], ["y"])], inputs, outputs, {})
        with admin(daemon.config.runtime_dir) as control:
            control.add(folder / f"{name}.onnx", name=name)
    assert endpoint.ask("GET", "/v2/models/free")[1]["inputs"][0]["shape"] == [-1]
    for shape, data in (([3], [1, 2, 3]), ([1, 2], [5, 6]), ([], [7])):
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]}
        status, answer = endpoint.ask("POST", "/v2/models/free/infer", body)
        assert status == 200, answer
        assert (status, answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == (200, shape, data)
    body = {"inputs": [{"name": "x", "datatype": "BF16", "shape": [2], "data": [1.0, 2.0]}]}
    status, answer = endpoint.ask("POST", "/v2/models/brain/infer", body)
    assert (status, "'x' as BF16" in answer["error"]) == (501, True), answer


def test_the_label_is_served_and_a_map_that_is_asked_for_is_not_implemented(endpoint: Endpoint) -> None:
    def infer(*names: str) -> tuple[int, Any]:
        outputs = {"outputs": [{"name": name} for name in names]} if names else {}
        return endpoint.ask("POST", "/v2/models/c/infer", {"inputs": [X], **outputs})

    for names in ((), ("label",)):
        status, answer = infer(*names)
        assert status == 200, answer
        assert (status, [(each["name"], each["data"]) for each in answer["outputs"]]) == (200, [("label", [3, 7])])
    for names in (("output_probability",), ("label", "output_probability")):
        status, answer = infer(*names)
        assert (status, "'output_probability' of the type seq" in answer["error"]) == (501, True)
    status, answer = infer("other")
    assert (status, "no output 'other'; it has label" in answer["error"]) == (400, True)
    word = "c: left out of answers: "
    wait_until(lambda: any(word in line for line in endpoint.said), "the log says what is left out")
    _, metadata = endpoint.ask("GET", "/v2/models/c")
    assert metadata["outputs"] == [{"name": "label", "datatype": "INT64", "shape": [-1]}]

    request = pb.ModelInferRequest(
        model_name="c",
        inputs=[pb.ModelInferRequest.InferInputTensor(name="X", datatype="FP32", shape=[2, 2])],
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="output_probability")],
    )
    request.inputs[0].contents.fp32_contents.extend(X["data"])  # type: ignore[arg-type]
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
