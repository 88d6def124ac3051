"""Several requests as one: their tensors put together along the first dimension, and the answers taken apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import CallerError, PredictorError
from trims_predictors.tensors import Tensor, split_bytes

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


def rows_of(tensors: Sequence[Tensor], wanted: Sequence[str] = ()) -> tuple[int, Hashable]:
    """Return a request's rows, and what other requests must have in common with it to run together.

    Args:
        tensors: Inputs of the request, of which each has a row for each row of the answer.
        wanted: Names of the outputs that it asks for; one that the model does not have fails the whole run.

    Raises CallerError if its tensors have different numbers of rows.
    """
    rows = {tensor.shape[0] if tensor.shape else 0 for tensor in tensors}
    if len(rows) != 1 or rows == {0}:
        shapes = ", ".join(f"{tensor.name!r} {list(tensor.shape)}" for tensor in tensors)
        raise CallerError(
            f"this model runs requests in batches: all inputs need the same first dimension, from 1 up; here {shapes}"
        )
    inputs = tuple((tensor.name, tensor.dtype, tensor.shape[1:]) for tensor in tensors)
    return rows.pop(), (inputs, frozenset(wanted))


def join(requests: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The tensors of all requests, which have the same names, types and shapes but for their rows, as one request."""
    if len(requests) == 1:
        return list(requests[0])
    joined = []
    for parts in zip(*requests, strict=True):
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        joined.append(Tensor(parts[0].name, parts[0].dtype, shape, b"".join(bytes(part.data) for part in parts)))
    return joined


def split(outputs: Sequence[Tensor], rows: Sequence[int]) -> list[list[Tensor]]:
    """Split an answer into each request's part. Raises PredictorError if an output has another number of rows."""
    if len(rows) == 1:
        return [list(outputs)]
    answers: list[list[Tensor]] = [[] for _ in rows]
    for output in outputs:
        if not output.shape or output.shape[0] != sum(rows):
            raise PredictorError(
                f"the predictor answered {sum(rows)} rows by {output.name!r} of shape {list(output.shape)}; a model "
                "with `max_batch_size` must answer one row for each that it is given"
            )
        for answer, part in zip(answers, _parts(output, rows), strict=True):
            answer.append(part)
    return answers


def _parts(output: Tensor, rows: Sequence[int]) -> list[Tensor]:
    ends = _row_ends(output)
    parts, first = [], 0
    for count in rows:
        last = first + count
        data = memoryview(output.data).cast("B")[ends[first] : ends[last]]
        parts.append(Tensor(output.name, output.dtype, (count, *output.shape[1:]), data))
        first = last
    return parts


def _row_ends(output: Tensor) -> list[int]:
    """Return where each row begins, and where the last one ends, in bytes."""
    rows = output.shape[0]
    if output.dtype != "BYTES":
        each = output.nbytes // rows
        return [row * each for row in range(rows + 1)]
    per_row = 1
    for length in output.shape[1:]:
        per_row *= length
    ends, at = [0], 0
    for index, element in enumerate(split_bytes(output.name, output.data, rows * per_row), 1):
        at += 4 + len(element)
        if index % per_row == 0:
            ends.append(at)
    return ends if per_row else [0] * (rows + 1)
