"""Requests of the inference protocol: what is right is read exactly, what is wrong is refused with its name."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.json.requests import (
    parse_request,
    parse_shrunk,
    shrink,
    to_json,
    write_answer,
)
from trims_predictors.endpoint.requests.infer_request import Wanted
from trims_predictors.endpoint.requests.outputs import Output, arrange
from trims_predictors.endpoint.requests.shared_memory import SharedMemory
from trims_predictors.tensors import Tensor, from_array, to_array

from trims.core.errors import CallerError

X = {"name": "x", "datatype": "FP32", "shape": [2, 2]}


def parse(message: object, *blobs: bytes) -> Any:
    header = json.dumps(message).encode()
    if not blobs:
        return parse_request(memoryview(header), None)
    return parse_request(memoryview(b"".join((header, *blobs))), str(len(header)))


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [1, 2, 3, 4], [[1.0, 2.0, 3.0, 4.0]]])
def test_json_values_are_nested_or_flat(data: object) -> None:
    (tensor,) = parse({"inputs": [{**X, "data": data}]}).inputs
    assert to_array(tensor).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("BOOL", [True, False]),
        ("UINT8", [0, 255]),
        ("UINT64", [0, 2**64 - 1]),
        ("INT8", [-128, 127]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("FP16", [0.5, -1]),
        ("BF16", [0.5, -1.0]),
        ("FP64", [0.1, 1e300]),
        ("BYTES", ["", "ünï"]),
    ],
)
def test_values_of_every_type_come_back_from_json_as_they_were(dtype: str, data: list[Any]) -> None:
    (tensor,) = parse({"inputs": [{"name": "x", "datatype": dtype, "shape": [2], "data": data}]}).inputs
    assert to_json(tensor) == data


def test_binary_tensors_follow_the_json_in_order() -> None:
    a, b = np.arange(4, dtype="f4"), np.arange(2)
    inputs = [
        {**X, "parameters": {"binary_data_size": 16}},
        {"name": "j", "datatype": "INT64", "shape": [1], "data": [7]},
        {"name": "y", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}},
    ]
    found = parse({"inputs": inputs}, a.tobytes(), b.tobytes()).inputs
    assert [to_array(tensor).ravel().tolist() for tensor in found] == [[0, 1, 2, 3], [7], [0, 1]]


def test_id_parameters_and_wanted_outputs_are_read() -> None:
    request = parse({"id": "7", "parameters": {"keep_alive": 3}, "inputs": [], "outputs": [{"name": "y"}]})
    assert (request.id, request.keep_alive_s, request.queue_deadline_s) == ("7", 3.0, None)
    assert request.wanted == {"y": Wanted()}
    for wrong in (-1, True, "3", 1e10):
        with pytest.raises(CallerError, match="must be seconds, from 0 to less than 1e9"):
            parse({"parameters": {"deadline": wrong}, "inputs": []})


WRONG: list[tuple[object, str]] = [
    ([], "the request must be an object"),
    ({}, "needs 'inputs'"),
    ({"inputs": {}}, "needs 'inputs'"),
    ({"inputs": [3]}, "an input must be an object"),
    ({"inputs": [{}]}, "needs 'name'"),
    ({"inputs": [{**X, "name": 3}]}, "needs 'name'"),
    ({"inputs": [{**X, "datatype": "FLOAT", "data": []}]}, "data type 'FLOAT'"),
    ({"inputs": [{**X, "shape": None, "data": []}]}, "needs 'shape'"),
    ({"inputs": [{**X, "shape": [2, -2], "data": []}]}, "lengths are 0 and more"),
    ({"inputs": [{**X, "shape": [2, 1.5], "data": []}]}, "lengths are whole numbers"),
    ({"inputs": [{**X, "shape": [True], "data": []}]}, "lengths are whole numbers"),
    ({"inputs": [{**X, "shape": [1 << 60], "data": []}]}, "more elements than memory"),
    ({"inputs": [X]}, "needs 'data'"),
    ({"inputs": [{**X, "data": "text"}]}, "needs 'data'"),
    ({"inputs": [{**X, "data": [1, 2, 3]}]}, r"has 3 values; the shape \[2, 2\] 4"),
    ({"inputs": [{**X, "data": [[1, 2], [3]]}]}, "not a regular array"),
    ({"inputs": [{**X, "data": [1, "b", "c", "d"]}]}, "holds text; FP32 is expected"),
    ({"inputs": [{**X, "data": [True, False, True, False]}]}, "FP32 is expected"),
    ({"inputs": [{**X, "data": [None] * 4}]}, "holds values that are no numbers; FP32 is expected"),
    ({"inputs": [{**X, "datatype": "INT32", "data": [1.5, 2, 3, 4]}]}, "INT32 is expected"),
    ({"inputs": [{**X, "datatype": "INT8", "data": [1, 2, 3, 300]}]}, "INT8 cannot hold"),
    ({"inputs": [{**X, "datatype": "UINT8", "data": [1, 2, 3, -1]}]}, "UINT8 cannot hold"),
    ({"inputs": [{**X, "datatype": "BOOL", "data": [1, 0, 1, 0]}]}, "BOOL is expected"),
    ({"inputs": [{**X, "datatype": "BOOL", "data": [2**64] * 4}]}, "BOOL is expected"),
    ({"inputs": [{**X, "datatype": "UINT64", "data": [1, 2, 3, 2**64]}]}, "UINT64 cannot hold"),
    ({"inputs": [{**X, "datatype": "UINT64", "data": [1, 2, -3, 2**63]}]}, "UINT64 cannot hold"),
    ({"inputs": [{**X, "datatype": "INT64", "data": [1, 2, -3, 2**63]}]}, "INT64 cannot hold"),
    ({"inputs": [{**X, "datatype": "INT8", "data": [1, 2, 3, -(2**70)]}]}, "INT8 cannot hold"),
    ({"inputs": [{**X, "datatype": "INT64", "data": [1, 2, 3.5, 2**64]}]}, "no numbers; INT64 is expected"),
    ({"inputs": [{**X, "datatype": "FP64", "data": [1, 2, 3, 10**400]}]}, "FP64 cannot hold"),
    ({"inputs": [{**X, "datatype": "FP64", "data": [1, 2, None, 10**400]}]}, "no numbers; FP64 is expected"),
    ({"inputs": [{**X, "datatype": "FP32", "data": [1, 2, 3, 2**200]}]}, "FP32 cannot hold"),
    ({"inputs": [{**X, "datatype": "BYTES", "data": [1, 2, 3, 4]}]}, "BYTES are texts"),
    ({"inputs": [{**X, "parameters": {"binary_data_size": 16}}]}, "claims 16 binary bytes; 0 are left"),
    ({"inputs": [{**X, "data": [], "parameters": {"binary_data_size": 0}}]}, "leave one out"),
    ({"inputs": [{**X, "parameters": []}]}, "must be an object"),
    ({"inputs": [], "id": 3}, "'id' must be text"),
    ({"inputs": [], "parameters": 3}, "must be an object"),
    ({"inputs": [], "outputs": [3]}, "must be an object"),
    ({"inputs": [], "outputs": [{"name": None}]}, "needs 'name'"),
]


@pytest.mark.parametrize(("message", "why"), WRONG)
def test_a_wrong_request_is_refused_and_its_fault_named(message: object, why: str) -> None:
    with pytest.raises(CallerError, match=why):
        parse(message)


@pytest.mark.parametrize(
    ("size", "why"),
    [(15, "FP32 of shape .* has 16"), (17, "17 binary bytes; 16 are left"), (-1, "-1"), (True, "True"), ("16", "16")],
)
def test_a_wrong_claim_of_binary_bytes_is_refused(size: object, why: str) -> None:
    with pytest.raises(CallerError, match=why):
        parse({"inputs": [{**X, "parameters": {"binary_data_size": size}}]}, bytes(16))


def test_bytes_after_the_last_tensor_are_refused() -> None:
    with pytest.raises(CallerError, match="3 bytes follow"):
        parse({"inputs": [{**X, "parameters": {"binary_data_size": 16}}]}, bytes(19))


@pytest.mark.parametrize("length", ["-1", "0", "99999", "1e3", "", "٣", "x" * 1000, "9" * 5000])
def test_a_wrong_length_of_the_json_is_refused(length: str) -> None:
    with pytest.raises(CallerError, match="inference-header-content-length"):
        parse_request(memoryview(b'{"inputs": []}'), length)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}"])
def test_what_is_not_json_or_too_deep_is_refused(body: bytes) -> None:
    with pytest.raises(CallerError):
        parse_request(memoryview(body), None)


def test_damaged_requests_never_end_in_another_error() -> None:
    right = json.dumps({"id": "a", "inputs": [{**X, "data": [[1, 2], [3, 4]]}], "outputs": [{"name": "y"}]}).encode()
    chance = random.Random(7)
    for _ in range(3000):
        damaged = bytearray(right)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.choice(b'{}[]",:0123456789.-eE\\ntruefals')
        try:
            request = parse_request(memoryview(damaged), chance.choice([None, str(chance.randint(0, 200))]))
        except CallerError:
            continue
        for tensor in request.inputs:
            tensor.check()


def answer(*outputs: Tensor) -> Answer:
    return Answer(list(outputs), cold=True, how="spare", place="cpu", warm=True, batch=1, stages={"predict_s": 0.25})


def arranged(request: Any, given: Answer, *, binary: bool) -> list[Output]:
    with SharedMemory().lend(request) as shared:
        return asyncio.run(arrange(request, given.outputs, batches=False, shared=shared, binary=binary))


def write(request: Any, given: Answer, *, binary: bool) -> tuple[bytes, int | None]:
    parts, json_length = write_answer(request, given, "m", "1.0.0", arranged(request, given, binary=binary))
    return b"".join(parts), json_length


def test_an_answer_tells_its_request_its_tensors_and_its_stages() -> None:
    request = parse({"id": "7", "inputs": []})
    y = from_array("y", np.array([[1.5, 2.5]], "f4"))
    body, json_length = write(request, answer(y), binary=False)
    assert json_length is None
    assert json.loads(body) == {
        "model_name": "m",
        "model_version": "1.0.0",
        "id": "7",
        "parameters": {
            "cold": True,
            "predictor": "spare",
            "place": "cpu",
            "resident": True,
            "batch": 1,
            "predict_s": 0.25,
        },
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5]}],
    }


@pytest.mark.parametrize(
    ("asked", "binary", "is_binary"),
    [
        ({}, False, (False, False)),
        ({}, True, (True, True)),
        ({"parameters": {"binary_data_output": True}}, False, (True, True)),
        ({"parameters": {"binary_data_output": False}}, True, (False, False)),
        ({"outputs": [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}]}, False, (True, False)),
    ],
)
def test_outputs_are_binary_as_asked(asked: dict[str, Any], binary: bool, is_binary: tuple[bool, ...]) -> None:
    outputs = (from_array("a", np.arange(2)), from_array("b", np.array(["t"])))
    body, json_length = write(parse({"inputs": [], **asked}), answer(*outputs), binary=binary)
    message = json.loads(body[:json_length])
    assert tuple("parameters" in each for each in message["outputs"]) == is_binary
    blobs = b"".join(bytes(each.data) for each, yes in zip(outputs, is_binary, strict=True) if yes)
    assert body[len(body) if json_length is None else json_length :] == blobs


def test_only_wanted_outputs_are_told_and_an_unknown_one_is_refused() -> None:
    outputs = (from_array("a", np.arange(2)), from_array("b", np.arange(3)))
    body, _ = write(parse({"inputs": [], "outputs": [{"name": "b"}]}), answer(*outputs), binary=False)
    assert [each["name"] for each in json.loads(body)["outputs"]] == ["b"]
    with pytest.raises(CallerError, match="no output 'c'; it has a, b"):
        write(parse({"inputs": [], "outputs": [{"name": "c"}]}), answer(*outputs), binary=False)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16])
def test_numbers_that_json_lacks_must_be_asked_for_as_binary(dtype: Any) -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(CallerError, match="which JSON lacks; ask for it with binary_data: true"):
            to_json(from_array("x", np.array([1, value]).astype(dtype)))


def test_bytes_that_are_no_text_must_be_asked_for_as_binary() -> None:
    with pytest.raises(CallerError, match="binary_data: true"):
        to_json(from_array("x", np.array([b"\xff"], dtype=object)))


MIXED = {
    "id": "7",
    "parameters": {"deadline": 2},
    "inputs": [
        {"name": "a", "datatype": "INT8", "shape": [2], "data": [1, 2]},
        {**X, "parameters": {"binary_data_size": 16}},
        {"name": "t", "datatype": "BYTES", "shape": [2, 1], "data": [["a"], ["\ud800"]]},
    ],
    "outputs": [{"name": "y"}],
}


def test_a_request_without_its_tensors_and_these_say_what_the_request_said() -> None:
    rest = np.arange(4, dtype="f4").tobytes()
    text, sizes, blobs = shrink(json.dumps(MIXED).encode())
    assert sizes == [2, None, 4 + 1 + 4 + 3]
    found = parse_shrunk(text, sizes, memoryview(b"".join(blobs)), memoryview(rest))
    assert found == parse(MIXED, rest)
    with pytest.raises(CallerError, match="1 bytes follow the last binary tensor"):
        parse_shrunk(text, sizes, memoryview(b"".join(blobs)), memoryview(rest + b"x"))


def test_a_request_without_its_tensors_is_small_or_refused() -> None:
    with pytest.raises(CallerError, match="without the 'data' of its inputs is larger than 65536 bytes"):
        shrink(json.dumps({"inputs": [], "parameters": {"x": "a" * 70_000}}).encode())


def test_values_that_were_written_elsewhere_stand_in_their_outputs() -> None:
    outputs = (from_array("a", np.arange(2)), from_array("b", np.arange(3)), from_array("c", np.arange(1)))
    request = parse({"inputs": [], "outputs": [{"name": "b"}, {"name": "c"}]})
    told = arranged(request, answer(*outputs), binary=False)
    parts, _ = write_answer(request, answer(*outputs), "m", "1", told, written=map(memoryview, (b"[7]", b"[8]")))
    assert [(each["name"], each["data"]) for each in json.loads(b"".join(parts))["outputs"]] == [("b", [7]), ("c", [8])]


@pytest.mark.parametrize(
    "asked",
    [
        {"parameters": {"binary_data_output": "no"}},
        {"outputs": [{"name": "a", "parameters": {"binary_data": 1}}]},
    ],
)
def test_whether_an_output_is_binary_is_true_or_false(asked: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match=r"'binary_data.*it must be true or false"):
        arranged(parse({"inputs": [], **asked}), answer(from_array("a", np.arange(2))), binary=False)


@pytest.mark.parametrize(
    ("stated", "place"),
    [
        ("cpu", ("cpu",)), ("disk", ("disk",)), ("gpu", ("gpu",)), ("gpu:1", ("gpu:1",)), ("auto", ("auto",)),
        ("gpu,cpu", ("gpu", "cpu")), (None, ()),
    ],
)  # fmt: skip
def test_a_request_may_name_places_of_its_weights(stated: str | None, place: tuple[str, ...]) -> None:
    assert parse({"inputs": [], "parameters": {"place": stated}}).places == place


@pytest.mark.parametrize(
    ("stated", "why"),
    [("moon", "'moon' is not a place; write cpu"), ("cpu:1", "only gpu has devices"), (7, "7; it must be text")],
)
def test_what_is_no_place_is_refused_by_name(stated: object, why: str) -> None:
    with pytest.raises(CallerError, match=why):
        parse({"inputs": [], "parameters": {"place": stated}})


@pytest.mark.parametrize(("dtype", "value"), [("FP32", 1e39), ("FP32", -1e39), ("FP16", 65520), ("BF16", 3.4e38 * 2)])
def test_a_number_beyond_the_input_s_type_is_refused_and_not_made_infinite(dtype: str, value: float) -> None:
    with pytest.raises(CallerError, match=f"the input 'x' has values that {dtype} cannot hold"):
        parse({"inputs": [{"name": "x", "datatype": dtype, "shape": [1], "data": [value]}]})


def test_infinity_and_nan_are_numbers_of_a_request() -> None:
    values = np.array([np.inf, -np.inf, np.nan])
    (tensor,) = parse({"inputs": [{"name": "x", "datatype": "FP16", "shape": [3], "data": values.tolist()}]}).inputs
    assert np.array_equal(to_array(tensor), values, equal_nan=True)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"inputs": [], "priority": 1}, "the request has the field 'priority'; it takes id, "),
        ({"inputs": [{**X, "data": [0] * 4, "shared_memory_region": "r"}]}, "an input has the field 'shared_mem"),
        (
            {"inputs": [], "outputs": [{"name": "y", "classification": 1}]},
            "output has the field 'classification",
        ),
    ],
)
def test_a_field_that_is_not_of_the_protocol_is_refused(message: dict[str, Any], why: str) -> None:
    with pytest.raises(CallerError, match=why):
        parse(message)


def test_a_field_that_is_there_twice_is_refused() -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1], "data": [2]}]}'
    with pytest.raises(CallerError, match="the request has 'data' twice in one object"):
        parse_request(memoryview(body), None)


def inputs(count: int) -> list[dict[str, Any]]:
    return [{"name": f"x{number}", "datatype": "FP32", "shape": [0], "data": []} for number in range(count)]


PARAMETERS = {str(number): True for number in range(257)}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"inputs": inputs(1025)}, "1025 inputs of the request; 1024 are the most"),
        ({"inputs": [], "outputs": [{"name": str(number)} for number in range(1025)]}, "1025 requested outputs"),
        ({"inputs": [], "parameters": PARAMETERS}, "257 parameters of the request; 256 are the most"),
        ({"inputs": [{**X, "data": [0] * 4, "parameters": PARAMETERS}]}, "257 parameters of (the input 'x'|an input);"),
        ({"inputs": [], "outputs": [{"name": "y", "parameters": PARAMETERS}]}, "257 parameters of an output"),
        ({"inputs": [{**X, "shape": [1] * 33, "data": [0]}]}, "33 dimensions of the input 'x'; 32 are the most"),
        ({"inputs": [{**X, "name": "x" * 257, "data": [0] * 4}]}, "257 letters; 256 are the most"),
        ({"inputs": [], "outputs": [{"name": "x" * 257}]}, "257 letters"),
        ({"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]}, "the output 'y' twice"),
    ],
)
def test_more_parts_than_a_request_may_have_are_refused(message: dict[str, Any], why: str) -> None:
    with pytest.raises(CallerError, match=why):
        parse(message)
    with pytest.raises(CallerError, match=why):
        parse_apart(message)


def parse_apart(message: dict[str, Any]) -> None:
    """Read a request as the process for large JSON and the endpoint do together."""
    left, sizes, blobs = shrink(json.dumps(message).encode())
    parse_shrunk(left, sizes, memoryview(b"".join(blobs)), memoryview(b""))


def test_as_many_parts_as_a_request_may_have_are_read() -> None:
    assert len(parse({"inputs": inputs(1024)}).inputs) == 1024


@pytest.mark.parametrize("dtype", ["FP32", "BYTES"])
def test_an_input_without_elements_may_bring_an_empty_list_beside_no_binary_bytes(dtype: str) -> None:
    given = {"name": "x", "datatype": dtype, "shape": [0], "data": [], "parameters": {"binary_data_size": 0}}
    (tensor,) = parse({"inputs": [given]}).inputs
    assert (tensor.shape, bytes(tensor.data)) == ((0,), b"")
    parse_apart({"inputs": [given]})
    for wrong in ({**given, "data": [1]}, {**given, "shape": [1], "datatype": "FP32"}):
        for read in (parse, parse_apart):
            with pytest.raises(CallerError, match="leave one out"):
                read({"inputs": [wrong]})
