"""Messages of ModelInfer: large data is not parsed here, too many parts are refused, all else is as it was."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import wire
from trims_predictors.endpoint.grpc.requests import pack_contents, parse_request
from trims_predictors.endpoint.grpc.wire import receive
from trims_predictors.tensors import to_array

from trims.core.errors import BadMessageError, CallerError

#: Bytes that make a message large, in a field that no reader knows.
PADDING = b"\xfa\x7f" + b"\x80\x80\x04" + bytes(1 << 16)


def message(**given: Any) -> Any:
    return pb.ModelInferRequest(model_name="m", id="7", **given)


def random_message(seed: int) -> Any:
    chance = random.Random(seed)
    made = message(model_version="1")
    raw = chance.random() < 0.5
    for number in range(chance.randrange(6)):
        length = chance.choice((0, 1, 7, 3000))
        each = made.inputs.add(name=f"x{number}", datatype="INT32", shape=[length])
        if raw:
            made.raw_input_contents.append(bytes(4 * length))
        elif chance.random() < 0.8:
            each.contents.int_contents.extend(chance.randrange(-9, 1 << 20) for _ in range(length))
    for number in range(chance.randrange(3)):
        made.outputs.add(name=f"y{number}").parameters["classification"].int64_param = 3
    made.parameters["deadline"].double_param = 0.5
    return made


@pytest.mark.parametrize("seed", range(40))
def test_a_large_message_says_what_it_says_when_it_is_parsed_at_once(seed: int) -> None:
    made = random_message(seed)
    expected = parse_request(made)
    received = receive(made.SerializeToString() + PADDING)
    assert received.trouble == ""
    found = parse_request(received.message, received)
    for index, pieces in received.contents.items():
        each = found.inputs[index]
        found.inputs[index] = type(each)(
            each.name, each.dtype, each.shape, pack_contents("x", "INT32", b"".join(pieces))
        )
    assert found == expected
    assert (received.message.model_name, received.message.model_version) == ("m", "1")


def test_contents_in_two_pieces_are_one_list_as_protobuf_has_it() -> None:
    first, second = (pb.InferTensorContents(int_contents=[each] * 40_000).SerializeToString() for each in (1, 2))
    name = b"\x0a\x01x\x12\x05INT32\x1a\x03\x80\xf1\x04"
    inner = name + b"".join(b"\x2a" + wire.varint_of(len(each)) + each for each in (first, second))
    received = receive(message().SerializeToString() + b"\x2a" + wire.varint_of(len(inner)) + inner)
    data = pack_contents("x", "INT32", b"".join(received.contents[0]))
    (tensor,) = parse_request(received.message, received).inputs
    assert to_array(type(tensor)("x", "INT32", tensor.shape, data)).tolist() == [1] * 40_000 + [2] * 40_000


@pytest.mark.parametrize("size", [0, 100_000])
def test_an_input_with_contents_beside_raw_bytes_is_refused_in_large_messages_too(size: int) -> None:
    made = message(raw_input_contents=[bytes(1 << 17)])
    made.inputs.add(name="x", datatype="FP32", shape=[1 << 15]).contents.fp32_contents.extend([1.0] * size)
    made.inputs[0].contents.SetInParent()
    received = receive(made.SerializeToString())
    with pytest.raises(CallerError, match="leave one out"):
        parse_request(received.message, received)


MANY = {
    "inputs": b"\x2a\x00",
    "requested outputs": b"\x32\x00",
    "raw_input_contents": b"\x3a\x00",
    "parameters": b"\x22\x08\x0a\x02ab\x12\x02\x08\x01",
    "fields": b"\x2a\x04\x1a\x00\x1a\x00" + b"\xf8\x7f\x01" * 20,
    "bytes": b"\x32\x83\x20\x0a\x80\x20" + b"n" * 4096,
}


@pytest.mark.parametrize("what", MANY)
def test_parts_without_end_are_counted_before_they_are_parsed(what: str) -> None:
    received = receive(message().SerializeToString() + MANY[what] * (40 if what == "bytes" else 100_000))
    assert what in received.trouble
    assert (received.message.model_name, received.message.id) == ("m", "7")
    assert received.message.ByteSize() <= 2 << 16


def test_dimensions_and_parameters_of_one_input_are_counted() -> None:
    for large in (b"", PADDING):
        made = message()
        made.inputs.add(name="x", datatype="FP32", shape=[1] * 33)
        received = receive(made.SerializeToString() + large)
        with pytest.raises(CallerError, match="33 dimensions"):
            parse_request(received.message, received)
        made = message()
        for number in range(257):
            made.inputs.add(name="x", datatype="FP32").parameters[str(number)].bool_param = True
        for number in range(257):
            made.inputs[0].parameters[str(number)].bool_param = True
        received = receive(made.SerializeToString() + large)
        with pytest.raises(CallerError, match="257 parameters"):
            parse_request(received.message, received)


@pytest.mark.parametrize("name", ["input", "output"])
def test_names_that_are_too_long_are_refused(name: str) -> None:
    made = message()
    if name == "input":
        made.inputs.add(name="x" * 257, datatype="FP32", shape=[0])
    else:
        made.outputs.add(name="x" * 257)
    with pytest.raises(CallerError, match="257 letters"):
        parse_request(made)


def test_a_message_that_is_cut_anywhere_is_no_protobuf_or_a_shorter_one() -> None:
    made = random_message(3)
    made.inputs.add(name="last", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"text")
    data = PADDING + made.SerializeToString()
    for end in range(len(PADDING), len(data)):
        try:
            expected = pb.ModelInferRequest.FromString(data[:end])
        except Exception:
            with pytest.raises(BadMessageError):
                receive(data[:end])
        else:
            assert len(receive(data[:end]).message.inputs) == len(expected.inputs)


@pytest.mark.parametrize(
    "wrong",
    [b"\x2a\x01", b"\x2a\x02\x2a\x01", b"\x80" * 11 + b"\x01", b"\x0b", b"\x02\x00", b"\x2d\x01", b"\x0a\x01\xff"],
)
def test_bytes_that_are_no_protobuf_are_refused_in_large_messages_too(wrong: bytes) -> None:
    for sent in (wrong, PADDING + wrong):
        with pytest.raises(BadMessageError):
            receive(sent)
