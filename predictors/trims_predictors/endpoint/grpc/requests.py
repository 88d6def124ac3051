"""Requests and answers of the Open Inference Protocol over gRPC, from and to protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from trims.core.errors import CallerError
from trims.manifests.serving import MOST_DIMENSIONS
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc.wire import Received, not_protobuf, varint_of
from trims_predictors.endpoint.json.requests import answer_parameters
from trims_predictors.endpoint.requests.infer_request import InferRequest, make_request
from trims_predictors.endpoint.requests.outputs import Output
from trims_predictors.endpoint.requests.request_limits import (
    MOST_PARAMETERS,
    MOST_TENSORS,
    check_count,
    check_name_length,
)
from trims_predictors.tensors import Tensor, cast, join_bytes, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims_predictors.deployment.deployment import Answer

#: Data type -> the list of a tensor's contents that has its elements; FP16 and BF16 travel as raw bytes only.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
#: Tag of `raw_output_contents`: the number of the field, and that its length comes next.
_RAW_OUTPUT = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2])
#: Lists of elements -> numpy's type of these.
_ELEMENTS = {
    "bool_contents": np.bool_, "int_contents": np.int32, "int64_contents": np.int64, "uint_contents": np.uint32,
    "uint64_contents": np.uint64, "fp32_contents": np.float32, "fp64_contents": np.float64,
}  # fmt: skip


def parse_request(message: Any, received: Received | None = None) -> InferRequest:
    """Read a ModelInferRequest. Raises CallerError naming what is wrong.

    Args:
        received: The data of tensors that is not in the message. Inputs whose contents are large have no data yet:
            `pack_contents` makes it, in another process.
    """
    apart = received or Received(message, message.raw_input_contents, {})
    _check_bounds(message)
    of_inputs = [parameters(each.parameters, f"the input {each.name!r}") for each in message.inputs]
    brought = [index for index, each in enumerate(of_inputs) if each.get("shared_memory_region") is None]
    if apart.raw and len(apart.raw) != len(brought):
        raise CallerError(
            f"the request has {len(brought)} inputs and raw_input_contents for {len(apart.raw)}; bring them for all "
            "inputs that do not lie in shared memory, or for none"
        )
    raw = dict(zip(brought, apart.raw, strict=False))
    inputs = [
        _input(each, raw.get(index), large=index in apart.contents)
        if of_inputs[index].get("shared_memory_region") is None
        else _in_shared_memory(each, large=index in apart.contents)
        for index, each in enumerate(message.inputs)
    ]
    for tensor, of_input in zip(inputs, of_inputs, strict=True):
        _check_size(tensor, of_input, raw=bool(apart.raw))
    wanted = [(each.name, parameters(each.parameters, f"the output {each.name!r}")) for each in message.outputs]
    given = parameters(message.parameters, "the request")
    return make_request(inputs, message.id or None, given, of_inputs, wanted, http=False)


def _check_bounds(message: Any) -> None:
    check_count("inputs of the request", len(message.inputs), MOST_TENSORS)
    check_count("requested outputs", len(message.outputs), MOST_TENSORS)
    check_count("parameters of the request", len(message.parameters), MOST_PARAMETERS)
    for each in (*message.inputs, *message.outputs):
        check_name_length(each.name, "an input or output")
        check_count(f"parameters of {each.name!r}", len(each.parameters), MOST_PARAMETERS)
    for each in message.inputs:
        check_count(f"dimensions of the input {each.name!r}", len(each.shape), MOST_DIMENSIONS)


def parameters(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return parameters as plain values. Raises CallerError for one without a value."""
    found = {}
    for name, value in given.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise CallerError(f"the parameter {name!r:.80} of {where} has no value that is known here")
        found[name] = getattr(value, choice)
    return found


def _input(message: Any, raw: bytes | memoryview | None, *, large: bool) -> Tensor:
    name, dtype, shape = message.name, message.datatype, tuple(message.shape)
    nbytes_of(name, dtype, shape)
    if raw is not None:
        if large or message.HasField("contents"):
            raise CallerError(f"the input {name!r} brings both contents and raw_input_contents; leave one out")
        return Tensor(name, dtype, shape, raw)
    if dtype not in _CONTENTS:
        raise CallerError(f"the input {name!r} is {dtype}, which travels in raw_input_contents only")
    return Tensor(name, dtype, shape, b"" if large else _packed(name, dtype, message.contents))


def _check_size(tensor: Tensor, given: Mapping[str, Any], *, raw: bool) -> None:
    """Check the binary size of an input, which KServe's client states over gRPC as over HTTP. Raises CallerError."""
    size = given.get("binary_data_size")
    if size is None:
        return
    if not raw:
        raise CallerError(f"the input {tensor.name!r} has the parameter 'binary_data_size' and no raw_input_contents")
    if isinstance(size, bool) or not isinstance(size, int) or size != tensor.nbytes:
        raise CallerError(
            f"the input {tensor.name!r} claims {size!r:.40} binary bytes; its raw_input_contents have {tensor.nbytes}"
        )


def _in_shared_memory(message: Any, *, large: bool) -> Tensor:
    name, dtype, shape = message.name, message.datatype, tuple(message.shape)
    nbytes_of(name, dtype, shape)
    if large or message.HasField("contents"):
        raise CallerError(f"the input {name!r} lies in shared memory and brings contents as well; leave one out")
    return Tensor(name, dtype, shape, b"")


def pack_contents(name: str, dtype: str, data: bytes) -> bytes:
    """The data of a tensor from its `contents`, an InferTensorContents as bytes. Raises CallerError."""
    contents = pb.InferTensorContents()
    try:
        contents.ParseFromString(data)
    except DecodeError as error:
        raise not_protobuf() from error
    return _packed(name, dtype, contents)


def _packed(name: str, dtype: str, contents: Any) -> bytes:
    filled = [each.name for each, _ in contents.ListFields()]
    if filled and filled != [_CONTENTS[dtype]]:
        raise CallerError(
            f"the input {name!r} is {dtype} and brings {' and '.join(filled)}; bring {_CONTENTS[dtype]} and no other"
        )
    elements = getattr(contents, _CONTENTS[dtype])
    if dtype == "BYTES":
        return join_bytes(elements)
    return cast(name, dtype, np.fromiter(elements, _ELEMENTS[_CONTENTS[dtype]], len(elements))).tobytes()


def write_answer(
    request: InferRequest, answer: Answer, model: str, version: str, outputs: Sequence[Output], *, raw: bool = True
) -> Any:
    """A ModelInferResponse with the raw contents of these outputs; those in shared memory have empty ones.

    With `raw` false it has no contents: `wire_parts` puts them behind it.
    """
    made = pb.ModelInferResponse(model_name=model, model_version=version, id=request.id or "")
    for name, value in answer_parameters(answer).items():
        _set(made.parameters[name], value)
    for output in outputs:
        tensor = output.tensor
        made.outputs.add(name=tensor.name, datatype=tensor.dtype, shape=tensor.shape)
        if raw:
            made.raw_output_contents.append(b"" if output.shared is not None else bytes(tensor.data))
    return made


def raw_bytes(outputs: Sequence[Output]) -> int:
    """Return the bytes of raw contents that an answer brings."""
    return sum(each.tensor.nbytes for each in outputs if each.shared is None)


def wire_parts(made: Any, outputs: Sequence[Output]) -> list[bytes | memoryview]:
    """Return a ModelInferResponse as bytes in parts, with the raw contents of outputs as they lie in memory.

    protobuf would copy them twice with Python's lock held, and the event loop would stand still meanwhile.
    """
    parts: list[bytes | memoryview] = [made.SerializeToString()]
    for output in outputs:
        data = memoryview(b"" if output.shared is not None else output.tensor.data).cast("B")
        parts += [_RAW_OUTPUT + varint_of(data.nbytes), data]
    return parts


def write_part(request: InferRequest, model: str, version: str, tensors: Sequence[Tensor]) -> Any:
    """A ModelInferResponse with a part of an answer."""
    made = pb.ModelInferResponse(model_name=model, model_version=version, id=request.id or "")
    for tensor in tensors:
        made.outputs.add(name=tensor.name, datatype=tensor.dtype, shape=tensor.shape)
        made.raw_output_contents.append(bytes(tensor.data))
    return made


def plain_outputs(tensors: Sequence[Tensor]) -> list[Output]:
    """Return outputs that are sent as they are."""
    return [Output(each) for each in tensors]


def _set(parameter: Any, value: object) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)
