"""Requests and answers over gRPC: contents and raw bytes, parameters, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc.requests import parse_request, raw_bytes, wire_parts, write_answer
from trims_predictors.endpoint.requests.infer_request import SharedRange, Wanted
from trims_predictors.endpoint.requests.outputs import Output
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import CallerError


def request(dtype: str, shape: list[int], raw: list[bytes] | None = None, **contents: Any) -> Any:
    made = pb.ModelInferRequest(model_name="m", raw_input_contents=raw or [])
    given = pb.InferTensorContents(**contents) if contents else None
    made.inputs.add(name="x", datatype=dtype, shape=shape, contents=given)
    return made


@pytest.mark.parametrize(
    ("dtype", "contents", "expected"),
    [
        ("BOOL", {"bool_contents": [True, False]}, [True, False]),
        ("INT8", {"int_contents": [-128, 127]}, [-128, 127]),
        ("INT32", {"int_contents": [-(2**31), 1]}, [-(2**31), 1]),
        ("INT64", {"int64_contents": [-(2**63), 1]}, [-(2**63), 1]),
        ("UINT8", {"uint_contents": [0, 255]}, [0, 255]),
        ("UINT64", {"uint64_contents": [0, 2**64 - 1]}, [0, 2**64 - 1]),
        ("FP32", {"fp32_contents": [0.5, -1]}, [0.5, -1]),
        ("FP64", {"fp64_contents": [0.1, 1e300]}, [0.1, 1e300]),
        ("BYTES", {"bytes_contents": [b"", b"\xff"]}, [b"", b"\xff"]),
    ],
)
def test_contents_of_every_type_are_read(dtype: str, contents: dict[str, Any], expected: list[Any]) -> None:
    (tensor,) = parse_request(request(dtype, [2], **contents)).inputs
    tensor.check()
    assert to_array(tensor).tolist() == expected


def test_raw_bytes_are_read_in_order() -> None:
    made = request("FP16", [2], [np.array([1, 2], "f2").tobytes(), b"\1"])
    made.inputs.add(name="y", datatype="BOOL", shape=[1])
    assert [to_array(tensor).tolist() for tensor in parse_request(made).inputs] == [[1, 2], [True]]


def test_parameters_and_wanted_outputs_are_plain_values() -> None:
    made = request("FP32", [0])
    made.id = "7"
    made.parameters["keep_alive"].int64_param = 3
    made.parameters["deadline"].double_param = 0.5
    made.outputs.add(name="y")
    found = parse_request(made)
    assert (found.id, found.parameters, found.wanted) == ("7", {"keep_alive": 3, "deadline": 0.5}, {"y": Wanted()})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (request("FP32", [1], [b"1234", b"1234"]), "raw_input_contents for 2"),
        (request("FP32", [1], [b"1234"], fp32_contents=[1]), "leave one out"),
        (request("FP16", [1]), "travels in raw_input_contents only"),
        (request("FLOAT", [1]), "data type 'FLOAT'"),
        (request("FP32", [1], fp64_contents=[1]), "is FP32 and brings fp64_contents; bring fp32_contents and no other"),
        (
            request("FP64", [1], fp32_contents=[1], fp64_contents=[1]),
            "is FP64 and brings fp32_contents and fp64_contents; bring fp64_contents and no other",
        ),
        (request("FP32", [-1]), "lengths are 0 and more"),
        (request("INT8", [1], int_contents=[128]), "INT8 cannot hold"),
        (request("UINT16", [1], uint_contents=[1 << 16]), "UINT16 cannot hold"),
    ],
)
def test_what_is_wrong_is_named(made: Any, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        parse_request(made)


def test_a_parameter_without_a_value_is_refused_by_name() -> None:
    made = request("FP32", [0])
    made.inputs[0].parameters["empty"].Clear()
    with pytest.raises(CallerError, match=r"'empty' of the input .*has no value"):
        parse_request(made)


def test_a_binary_size_is_that_of_the_raw_contents() -> None:
    def sized(size: int, raw: list[bytes]) -> Any:
        made = request("FP32", [1], raw, **({} if raw else {"fp32_contents": [1]}))
        made.inputs[0].parameters["binary_data_size"].int64_param = size
        return made

    assert parse_request(sized(4, [b"1234"])).inputs[0].nbytes == 4
    with pytest.raises(CallerError, match="claims 8 binary bytes"):
        parse_request(sized(8, [b"1234"]))
    with pytest.raises(CallerError, match="no raw_input_contents"):
        parse_request(sized(4, []))


def test_contents_that_are_not_there_are_too_few_bytes() -> None:
    (tensor,) = parse_request(request("FP32", [2])).inputs
    with pytest.raises(CallerError, match="brings 0 bytes"):
        tensor.check()


def test_an_answer_has_raw_contents_and_tells_what_happened() -> None:
    made = request("FP32", [0])
    made.id = "7"
    outputs = [from_array("a", np.arange(2)), from_array("b", np.array(["t"]))]
    answer = Answer(outputs, cold=True, how="spare", place="cpu", warm=True, batch=1, stages={"predict_s": 0.25})
    told = write_answer(parse_request(made), answer, "m", "1.0.0", [Output(each) for each in outputs])
    assert (told.model_name, told.model_version, told.id) == ("m", "1.0.0", "7")
    assert [(each.name, each.datatype, list(each.shape)) for each in told.outputs] == [
        ("a", "INT64", [2]),
        ("b", "BYTES", [1]),
    ]
    assert list(told.raw_output_contents) == [np.arange(2).tobytes(), b"\1\0\0\0t"]
    assert told.parameters["cold"].bool_param is True
    assert told.parameters["predict_s"].double_param == 0.25
    assert told.parameters["predictor"].string_param == "spare"
    assert told.parameters["batch"].int64_param == 1


def test_an_answer_in_parts_is_the_answer() -> None:
    outputs = [
        Output(from_array("a", np.arange(300))),
        Output(from_array("b", np.array(["t"])), shared=SharedRange("r", 0, 8)),
        Output(from_array("c", np.zeros(0))),
    ]
    answer = Answer([], cold=False, how="running", place="cpu", warm=True, batch=1, stages={})
    asked = parse_request(request("FP32", [0]))
    whole = write_answer(asked, answer, "m", "1.0.0", outputs)
    parts = wire_parts(write_answer(asked, answer, "m", "1.0.0", outputs, raw=False), outputs)
    assert pb.ModelInferResponse.FromString(b"".join(parts)) == whole
    assert raw_bytes(outputs) == 2400
