"""Raw binary requests over HTTP: the body is the data of a model's one input (Triton's `extension_binary_data.md`)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from trims.core.errors import CallerError
from trims.manifests.serving import ANY, ANY_RANK
from trims_predictors.endpoint.requests.infer_request import InferRequest
from trims_predictors.tensors import Tensor, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.manifests.serving import TensorType

#: The length of the JSON that such a request states in its header: it has none.
NO_JSON = "0"


def raw_request(body: memoryview, inputs: Sequence[TensorType], *, batches: bool, model: str) -> InferRequest:
    """A request whose body is the data of the model's one input, and nothing else. Raises CallerError.

    The shape is that of the input, with as many elements in its one variable dimension as the body has. A body for
    BYTES is its one element, without a length before it.

    Args:
        inputs: Of the model, as far as they are known.
        batches: Whether the first dimension is that of a batch: of one row then.
    """
    if len(inputs) != 1:
        known = f"has {len(inputs)} inputs" if inputs else "has not told its inputs yet"
        raise CallerError(f"{model!r} {known}, and a raw binary request is for one input; name the inputs in JSON")
    name, dtype, shape = inputs[0].name, inputs[0].dtype, list(inputs[0].shape)
    if shape == [ANY_RANK]:
        raise CallerError(f"the graph of {model!r} states no shape for the input {name!r}; state it in JSON")
    if batches and shape:
        shape[0] = 1
    if dtype == "BYTES":
        shape = [1 if length == ANY else length for length in shape]
        if prod(shape) != 1:
            raise CallerError(f"the input {name!r} has the shape {shape}; a raw binary request brings one element")
        data = b"".join((len(body).to_bytes(4, "little"), body))
        return InferRequest([Tensor(name, dtype, tuple(shape), data, checked=True)])
    if shape.count(ANY) > 1:
        raise CallerError(f"the input {name!r} has the shape {shape}; a raw binary request leaves one length open")
    row = nbytes_of(name, dtype, [1 if length == ANY else length for length in shape]) or 1
    shape = [len(body) // row if length == ANY else length for length in shape]
    if nbytes_of(name, dtype, shape) != len(body):
        raise CallerError(
            f"the body has {len(body)} bytes; the input {name!r}, {dtype} of shape {list(inputs[0].shape)} (-1: any), "
            f"has {'a multiple of ' if ANY in inputs[0].shape else ''}{row}"
        )
    return InferRequest([Tensor(name, dtype, tuple(shape), body)])
