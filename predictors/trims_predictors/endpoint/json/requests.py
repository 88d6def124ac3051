"""Requests and answers of the Open Inference Protocol over HTTP: JSON, and JSON with binary tensors after it.

Protocol: kserve/open-inference-protocol, `inference_rest.md`; binary tensors: Triton's `extension_binary_data.md`.
Everything in a request is checked here; a claim about sizes is held against what came before memory is taken for it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims.manifests.serving import MOST_DIMENSIONS
from trims_predictors.endpoint.json.numbers import flat, numbers
from trims_predictors.endpoint.json.text import SMALL_BYTES, load_json
from trims_predictors.endpoint.requests.infer_request import InferRequest, Parameters, make_request, shared_range
from trims_predictors.endpoint.requests.request_limits import (
    MOST_PARAMETERS,
    MOST_TENSORS,
    check_count,
    check_fields,
    check_name_length,
)
from trims_predictors.tensors import Tensor, from_array, join_bytes, nbytes_of, numpy_dtype, split_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trims_predictors.deployment.deployment import Answer
    from trims_predictors.endpoint.requests.outputs import Output

#: Header of requests and answers with the length of the JSON before the binary tensors.
HEADER_LENGTH = "inference-header-content-length"
_MOST_DIGITS = 16


def parse_request(body: memoryview, header_length: str | None) -> InferRequest:
    """Read a request. Raises CallerError naming the field that is wrong."""
    return _request(*_read(body, header_length, "inputs"))


def shrink(text: bytes) -> tuple[bytes, list[int | None], list[bytes | memoryview]]:
    """Take the tensors out of the JSON of a request: what another process does for one that is large.

    Returns:
        The JSON without the values of its tensors, the bytes of each of its inputs, None for one that is not in the
        JSON, and the data of all others.

    Raises CallerError naming the field that is wrong, and for more than SMALL_BYTES that are no values of tensors.
    """
    message = _object(load_json(text), "the request")
    sizes: list[int | None] = []
    blobs = []
    for each in _tensors(message, "inputs"):
        given = _parameters(_object(each, "an input"), "an input")
        if given.get("binary_data_size") is None and given.get("shared_memory_region") is None:
            tensor, _ = _input(each, memoryview(b""))
            blobs.append(tensor.data)
            sizes.append(tensor.nbytes)
            each["data"] = []
        else:
            sizes.append(None)
    left = json.dumps(message, separators=(",", ":")).encode()
    if len(left) > SMALL_BYTES:
        raise CallerError(f"the request's JSON without the 'data' of its inputs is larger than {SMALL_BYTES} bytes")
    return left, sizes, blobs


def parse_shrunk(text: bytes, sizes: Sequence[int | None], data: memoryview, rest: memoryview) -> InferRequest:
    """Read a request whose tensors `shrink` has taken out of its JSON.

    Args:
        text: The JSON that it left.
        sizes: The bytes of each input that it took out.
        rest: The binary tensors that followed the JSON.

    Raises CallerError as `parse_request` does.
    """
    message = _object(load_json(text), "the request")
    found = []
    for each, size in zip(message["inputs"], sizes, strict=True):
        if size is None:
            tensor, rest = _input(each, rest)
        else:
            tensor = Tensor(each["name"], each["datatype"], tuple(each["shape"]), data[:size], checked=True)
            data = data[size:]
        found.append(tensor)
    _check_end(rest)
    return _request(message, found)


def _request(message: Mapping[str, Any], inputs: list[Tensor]) -> InferRequest:
    check_fields(message, ("id", "model_name", "parameters", "inputs", "outputs"), "the request")
    for each in message["inputs"]:
        check_fields(each, ("name", "datatype", "shape", "parameters", "data"), "an input")
    of_inputs = [_parameters(each, "an input") for each in message["inputs"]]
    parameters = _parameters(message, "the request")
    request = make_request(inputs, _id(message), parameters, of_inputs, _wanted(message), http=True)
    return replace(request, model=message.get("model_name"))


def parse_answer(body: memoryview, header_length: str | None) -> tuple[dict[str, Any], list[Tensor]]:
    """Read an answer: its JSON, and its outputs. Raises CallerError naming the field that is wrong."""
    return _read(body, header_length, "outputs")


def _read(body: memoryview, header_length: str | None, tensors: str) -> tuple[dict[str, Any], list[Tensor]]:
    """The JSON of a message, and the tensors that it lists under a name."""
    end = json_end(body, header_length)
    message = _object(load_json(bytes(body[:end])), "the request")
    rest, found = body[end:], []
    for each in _tensors(message, tensors):
        tensor, rest = _input(_object(each, "an input"), rest)
        found.append(tensor)
    _check_end(rest)
    return message, found


def _tensors(message: Mapping[str, Any], name: str) -> list[Any]:
    listed = _list(message, name, "the request")
    check_count(f"{name} of the request", len(listed), MOST_TENSORS)
    return listed


def _check_end(rest: memoryview) -> None:
    if len(rest):
        raise CallerError(f"{len(rest)} bytes follow the last binary tensor; correct its binary_data_size")


def json_end(body: memoryview, header_length: str | None) -> int:
    """Return how many bytes at the beginning of a request are JSON. Raises CallerError for a header that is wrong."""
    if header_length is None:
        return len(body)
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) < _MOST_DIGITS
    if not digits or not 0 < int(header_length) <= len(body):
        raise CallerError(
            f"the header {HEADER_LENGTH} is {header_length!r:.40}; the body has {len(body)} bytes, JSON first"
        )
    return int(header_length)


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CallerError(f"{what} must be an object, not {value!r:.80}")
    return value


def _list(message: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = message.get(name)
    if not isinstance(value, list):
        raise CallerError(f"{where} needs {name!r}, a list; it has {value!r:.80}")
    return value


def _text(message: Mapping[str, Any], name: str, where: str) -> str:
    value = message.get(name)
    if not isinstance(value, str) or not value:
        raise CallerError(f"{where} needs {name!r}, a text; it has {value!r:.80}")
    return value


def _id(message: Mapping[str, Any]) -> str | None:
    value = message.get("id")
    if value is not None and not isinstance(value, str):
        raise CallerError(f"'id' must be text, not {value!r:.80}")
    return value


def _parameters(message: Mapping[str, Any], where: str) -> Parameters:
    value = message.get("parameters")
    found = {} if value is None else _object(value, f"'parameters' of {where}")
    check_count(f"parameters of {where}", len(found), MOST_PARAMETERS)
    return found


def _wanted(message: Mapping[str, Any]) -> list[tuple[str, Parameters]]:
    """Names and parameters of the outputs that a request asks for."""
    if message.get("outputs") is None:
        return []
    listed = _list(message, "outputs", "the request")
    check_count("requested outputs", len(listed), MOST_TENSORS)
    wanted = [_object(each, "a requested output") for each in listed]
    for each in wanted:
        check_fields(each, ("name", "parameters"), "a requested output")
    return [(_text(each, "name", "a requested output"), _parameters(each, "an output")) for each in wanted]


def _input(message: dict[str, Any], rest: memoryview) -> tuple[Tensor, memoryview]:
    """One input, and what is left of the binary tensors."""
    name = _text(message, "name", "an input")
    check_name_length(name, "an input")
    dtype = _text(message, "datatype", f"the input {name!r}")
    shape = _shape(message, name)
    expected = nbytes_of(name, dtype, shape)
    parameters = _parameters(message, f"the input {name!r}")
    size = parameters.get("binary_data_size")
    if shared_range(parameters, f"the input {name!r}") is not None:
        if "data" in message or size is not None:
            raise CallerError(f"the input {name!r} lies in shared memory and brings data as well; leave one out")
        return Tensor(name, dtype, tuple(shape), b""), rest
    if size is None:
        return _from_json(name, dtype, shape, message.get("data")), rest
    empty = (
        size == 0 and not expected and message.get("data") == []
    )  # as KServe's client sends tensors without elements
    if "data" in message and not empty:
        raise CallerError(f"the input {name!r} brings both 'data' and binary_data_size; leave one out")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(rest):
        raise CallerError(f"the input {name!r} claims {size!r:.40} binary bytes; {len(rest)} are left in the body")
    if expected is not None and size != expected:
        raise CallerError(f"the input {name!r} claims {size} binary bytes; {dtype} of shape {shape} has {expected}")
    return Tensor(name, dtype, tuple(shape), rest[:size]), rest[size:]


def _shape(message: Mapping[str, Any], name: str) -> list[int]:
    shape = _list(message, "shape", f"the input {name!r}")
    check_count(f"dimensions of the input {name!r}", len(shape), MOST_DIMENSIONS)
    for length in shape:
        if isinstance(length, bool) or not isinstance(length, int):
            raise CallerError(f"the input {name!r} has {length!r:.40} in its shape; lengths are whole numbers")
    return shape


def _from_json(name: str, dtype: str, shape: Sequence[int], data: object) -> Tensor:
    """A tensor whose values stand in the JSON, nested or flat, in row-major order."""
    if not isinstance(data, list):
        raise CallerError(f"the input {name!r} needs 'data', a list, or binary_data_size; it has {data!r:.80}")
    count = 1
    for length in shape:
        count *= length
    if dtype == "BYTES":
        texts = flat(data)
        _check_count(name, len(texts), count, shape)
        return Tensor(name, dtype, tuple(shape), join_bytes(_bytes(name, each) for each in texts))
    values = numbers(name, dtype, data)
    _check_count(name, values.size, count, shape)
    return Tensor(name, dtype, tuple(shape), from_array(name, values).data)


def _bytes(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise CallerError(f"the 'data' of the input {name!r} holds {value!r:.40}; BYTES are texts in JSON")
    return value.encode(errors="surrogatepass")


def _check_count(name: str, given: int, expected: int, shape: Sequence[int]) -> None:
    if given != expected:
        raise CallerError(f"the 'data' of the input {name!r} has {given} values; the shape {list(shape)} {expected}")


def write_answer(
    request: InferRequest,
    answer: Answer,
    model: str,
    version: str,
    outputs: Sequence[Output],
    *,
    written: Iterable[memoryview] | None = None,
) -> tuple[list[bytes | memoryview], int | None]:
    """The body of an answer, in parts.

    Args:
        written: The values of those that are not binary, as JSON; None to write them here.

    Returns:
        The body, and the length of its JSON if binary tensors follow it.

    Raises CallerError for an output that JSON cannot hold.
    """
    message: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        message["id"] = request.id
    parts: list[bytes | memoryview] = [dump({**message, "parameters": answer_parameters(answer)})[:-1], b',"outputs":[']
    texts = None if written is None else iter(written)
    for index, output in enumerate(outputs):
        tensor = output.tensor
        described: dict[str, Any] = {"name": tensor.name, "datatype": tensor.dtype, "shape": list(tensor.shape)}
        if output.binary and output.shared is None:  # clients of Triton take any parameters for those of binary data
            described["parameters"] = {"binary_data_size": tensor.nbytes}
        parts.append((b"," if index else b"") + dump(described)[:-1])
        if output.in_json:
            parts += [b',"data":', next(texts) if texts is not None else dump(to_json(tensor))]
        parts.append(b"}")
    parts.append(b"]}")
    blobs = [each.tensor.data for each in outputs if each.binary and each.shared is None]
    return [*parts, *blobs], sum(map(len, parts)) if blobs else None


def dump(value: object) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def answer_parameters(answer: Answer) -> Parameters:
    """Return the parameters of an answer: whether it was cold, from where, and the seconds of each stage."""
    return {
        "cold": answer.cold,
        "predictor": answer.how,
        "place": answer.place,
        "resident": answer.warm,
        "batch": answer.batch,
        **{name: round(seconds, 6) for name, seconds in answer.stages.items()},
    }


def to_json(tensor: Tensor) -> list[Any]:
    """A tensor's values, flat and row-major. Raises CallerError for bytes that are not text."""
    import numpy as np

    if tensor.dtype == "BYTES":
        count = 1
        for length in tensor.shape:
            count *= length
        try:
            return [each.decode() for each in split_bytes(tensor.name, tensor.data, count)]
        except UnicodeDecodeError as error:
            raise CallerError(
                f"the output {tensor.name!r} holds bytes that are not UTF-8; ask for it with binary_data: true"
            ) from error
    array = np.frombuffer(tensor.data, dtype=numpy_dtype(tensor.dtype))
    if array.dtype.kind in "fV" and not np.isfinite(array.astype("f4") if tensor.dtype == "BF16" else array).all():
        raise CallerError(
            f"the output {tensor.name!r} holds NaN or infinity, which JSON lacks; ask for it with binary_data: true"
        )
    values: list[Any] = (array.astype("f4") if tensor.dtype == "BF16" else array).tolist()
    return values
