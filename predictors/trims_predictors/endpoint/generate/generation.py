"""Requests for text in JSON, of Triton's generate extension and OpenAI's API, as tensors of an inference request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims_predictors.endpoint.requests.infer_request import InferRequest, Wanted
from trims_predictors.endpoint.requests.request_limits import MOST_TENSORS, check_count, check_name_length
from trims_predictors.tensors import Tensor, join_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Output of a generator, and the name under which Triton's clients know it.
GENERATED, TEXT_OUTPUT = "generated_text", "text_output"
#: Input of a generator: whether its answer begins with the request's text.
FULL_TEXT = "return_full_text"
#: Input by which a request over a stream asks for parts.
STREAM = "stream"
_MOST_INTEGER = 1 << 63


def request_of(fields: Mapping[str, Any], wanted: Iterable[str] = (), request_id: str | None = None) -> InferRequest:
    """Return an inference request with one input for each field. Raises CallerError for what no tensor holds.

    Args:
        fields: Text, numbers, truth values, and lists of one of these; null for a field that is left out.
        wanted: Outputs to ask for; none for those of the model.
        request_id: Comes back in the answer.
    """
    check_count("fields of the request", len(fields), MOST_TENSORS)
    inputs = [_tensor(name, value) for name, value in fields.items() if value is not None]
    asked = {name: Wanted() for name in wanted} or None
    return InferRequest(inputs, request_id, wanted=asked)


def _tensor(name: str, value: Any) -> Tensor:
    check_name_length(name, "a field of the request")
    values = value if isinstance(value, list) else [value]
    kinds = {type(each) for each in values}
    if kinds == {str}:
        return Tensor(name, "BYTES", (len(values),), join_bytes(_encoded(name, each) for each in values), checked=True)
    if kinds == {bool}:
        return Tensor(name, "BOOL", (len(values),), bytes(values), checked=True)
    if kinds == {int} and all(-_MOST_INTEGER <= each < _MOST_INTEGER for each in values):
        data = b"".join(each.to_bytes(8, "little", signed=True) for each in values)
        return Tensor(name, "INT64", (len(values),), data, checked=True)
    if kinds and kinds <= {int, float}:
        import numpy as np

        return Tensor(name, "FP64", (len(values),), np.array(values, dtype="<f8").tobytes(), checked=True)
    raise CallerError(
        f"the field {name!r} is {json.dumps(value)[:80]}; write text, numbers, true, false, or a list of one kind"
    )


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CallerError(f"the field {name!r} has half of a character: {error.reason}") from error


def wants_parts(asked: InferRequest) -> bool:
    """Return whether a request has the input `stream`, and it is true: as Triton's backends for text have it."""
    return any(each.name == STREAM and each.dtype == "BOOL" and bytes(each.data) == b"\1" for each in asked.inputs)
