"""Requests and answers of the Open Inference Protocol over gRPC, from and to protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError
from trims_predictors.endpoint import inference_pb2 as pb
from trims_predictors.endpoint.requests import InferRequest, told
from trims_predictors.tensors import Tensor, cast, join_bytes, nbytes_of, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims_predictors.records import Answer

#: Data type -> the list of a tensor's contents that has its elements; FP16 and BF16 travel as raw bytes only.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def parse_request(message: Any) -> InferRequest:
    """Read a ModelInferRequest. Raises CallerError naming what is wrong."""
    raw = list(message.raw_input_contents)
    if raw and len(raw) != len(message.inputs):
        raise CallerError(
            f"the request has {len(message.inputs)} inputs and raw_input_contents for {len(raw)}; bring them for all "
            "inputs or for none"
        )
    inputs = [_input(each, raw[index] if raw else None) for index, each in enumerate(message.inputs)]
    wanted = {each.name: parameters(each.parameters) for each in message.outputs} or None
    return InferRequest(inputs, message.id or None, parameters(message.parameters), wanted)


def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as plain values."""
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in given.items()}
    return {name: getattr(given[name], choice) for name, choice in chosen.items() if choice is not None}


def _input(message: Any, raw: bytes | None) -> Tensor:
    name, dtype, shape = message.name, message.datatype, tuple(message.shape)
    nbytes_of(name, dtype, shape)
    if raw is not None:
        if message.HasField("contents"):
            raise CallerError(f"the input {name!r} brings both contents and raw_input_contents; leave one out")
        return Tensor(name, dtype, shape, raw)
    if dtype not in _CONTENTS:
        raise CallerError(f"the input {name!r} is {dtype}, which travels in raw_input_contents only")
    filled = [each.name for each, _ in message.contents.ListFields()]
    if filled and filled != [_CONTENTS[dtype]]:
        raise CallerError(
            f"the input {name!r} is {dtype} and brings {' and '.join(filled)}; bring {_CONTENTS[dtype]} and no other"
        )
    return Tensor(name, dtype, shape, _packed(name, dtype, getattr(message.contents, _CONTENTS[dtype])))


def _packed(name: str, dtype: str, elements: Any) -> bytes:
    if dtype == "BYTES":
        return join_bytes(elements)
    values = np.array(elements, dtype=None if len(elements) else numpy_dtype(dtype))
    return cast(name, dtype, values).tobytes()


def write_answer(request: InferRequest, answer: Answer, model: str, version: str) -> Any:
    """A ModelInferResponse with raw contents. Raises CallerError for an output that the model does not have."""
    made = pb.ModelInferResponse(model_name=model, model_version=version, id=request.id or "")
    for name, value in told(answer).items():
        _set(made.parameters[name], value)
    for tensor in request.chosen(answer.outputs):
        made.outputs.add(name=tensor.name, datatype=tensor.dtype, shape=tensor.shape)
        made.raw_output_contents.append(bytes(tensor.data))
    return made


def _set(parameter: Any, value: object) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)
