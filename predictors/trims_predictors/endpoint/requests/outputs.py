"""Outputs as a response has them: as they are, their largest values as texts, or where they were written.

Classification: Triton's `extension_classification.md`. An output becomes texts `VALUE:INDEX`, or
`VALUE:INDEX:LABEL`, the largest value first, so many for each row of a batch.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims_predictors.endpoint.requests.infer_request import binary_by_default
from trims_predictors.endpoint.requests.request_limits import MOST_CLASS_TEXTS
from trims_predictors.tensors import Tensor, join_bytes, to_array

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import numpy as np

    from trims_predictors.endpoint.requests.infer_request import InferRequest, SharedRange
    from trims_predictors.endpoint.requests.shared_memory import Lent

#: Elements that are sorted in the event loop; of more, a thread finds the largest.
_FEW_ELEMENTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Output:
    """One output of an answer.

    Attributes:
        binary: Whether its data follows the JSON; over HTTP.
        shared: Where it was written; None if its data is in the answer.
    """

    tensor: Tensor
    binary: bool = False
    shared: SharedRange | None = None

    @property
    def in_json(self) -> bool:
        """Return whether its values stand in the JSON of an answer over HTTP."""
        return not self.binary and self.shared is None


async def arrange(
    request: InferRequest,
    outputs: Sequence[Tensor],
    *,
    batches: bool,
    shared: Lent,
    binary: bool = False,
    labels: Callable[[str], Awaitable[Sequence[bytes]]] | None = None,
) -> list[Output]:
    """Make of the outputs of a model what a request asks for.

    Args:
        outputs: All that the model gave.
        batches: Whether the first dimension of outputs is that of a batch.
        shared: Regions that outputs are written to.
        binary: Whether outputs are binary that say nothing themselves, in a request that does not either.
        labels: Gives the labels of an output's elements by its name; None for none.

    Raises:
        CallerError: An output is asked for that the model does not have, or that has no classes, or is larger than its
            place in shared memory.
    """
    otherwise = binary_by_default(request, otherwise=binary)
    made = []
    for tensor, wanted in request.chosen(outputs):
        shown = tensor
        if wanted.classes:
            few = prod(tensor.shape) <= _FEW_ELEMENTS
            named = await labels(tensor.name) if labels is not None else ()
            work = partial(classify, tensor, wanted.classes, batches=batches, labels=named)
            shown = work() if few else await asyncio.to_thread(work)
        if wanted.shared is not None:
            await shared.write(tensor.name, wanted.shared, tensor.data)
        made.append(Output(shown, otherwise if wanted.binary is None else wanted.binary, wanted.shared))
    return made


def classify(tensor: Tensor, classes: int, *, batches: bool, labels: Sequence[bytes] = ()) -> Tensor:
    """The largest values of an output, as BYTES of the form `VALUE:INDEX`, or `VALUE:INDEX:LABEL` where it has one.

    Args:
        tensor: Numbers, of the shape [...], or [N, ...] with a batch of N rows.
        classes: So many of each row; fewer if it has fewer elements.
        batches: Whether the first dimension is that of a batch.
        labels: Names of the elements of a row, in order.

    Returns:
        A tensor of the shape [classes], or [N, classes]. Of equal values the one with the smaller index comes first.

    Raises:
        CallerError: The output has text or truth values, or would become too many texts.
    """
    import numpy as np

    if tensor.dtype in ("BYTES", "BOOL"):
        raise CallerError(f"the output {tensor.name!r} is {tensor.dtype}; a classification is of numbers")
    array = to_array(tensor)
    has_rows = batches and array.ndim > 0
    rows = array.reshape(len(array), prod(array.shape[1:])) if has_rows else array.reshape(1, -1)
    count = min(classes, rows.shape[1])
    if len(rows) * count > MOST_CLASS_TEXTS:
        raise CallerError(
            f"the classification of {tensor.name!r} has {len(rows) * count} texts; {MOST_CLASS_TEXTS} are the most"
        )
    rows = rows.astype(np.float32) if rows.dtype.kind == "V" else rows
    texts = [text for row in rows for text in _largest(row, count, labels)]
    shape = (len(rows), count) if has_rows else (count,)
    return Tensor(tensor.name, "BYTES", shape, join_bytes(texts))


def _largest(row: np.ndarray[Any, Any], count: int, labels: Sequence[bytes]) -> list[bytes]:
    import numpy as np

    # Stable on the negated order, so that of equal values the first one comes first; NaN sorts behind all numbers.
    order = np.argsort(_descending(row), kind="stable")[:count]
    form = "{:f}:{:d}" if row.dtype.kind not in "iu" else "{:d}:{:d}"
    largest = zip(row[order].tolist(), order.tolist(), strict=True)
    return [
        form.format(value, index).encode() + (b":" + labels[index] if index < len(labels) else b"")
        for value, index in largest
    ]


def _descending(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Keys that ascend where the values of a row descend: integers have no negative of every value, so bits do it."""
    return ~row if row.dtype.kind in "iu" else -row
