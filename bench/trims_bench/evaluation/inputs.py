"""Inputs of an evaluation's requests: made from a model's types, and repeated for batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from trims_predictors.tensors import from_array, numpy_dtype, to_array

from trims.core.errors import CallerError
from trims.manifests.serving import ANY, ANY_RANK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_predictors.tensors import Tensor

    from trims.manifests.serving import TensorType

_SEED = 1


def made_inputs(types: Sequence[TensorType], model: str) -> list[Tensor]:
    """Return inputs for a request, the same each time: normal numbers, zeros where numbers are whole, empty texts.

    Raises CallerError if the model's inputs, or the number of their dimensions, are not known.
    """
    if not types:
        raise CallerError(f"the inputs of {model} are not known; give some as for `trims run`")
    random, made = np.random.default_rng(_SEED), []
    for each in types:
        if each.shape == (ANY_RANK,):
            raise CallerError(f"the input {each.name!r} of {model} may have any number of dimensions; give one")
        shape = tuple(max(1, length) for length in each.shape)
        if each.dtype == "BYTES":
            made.append(from_array(each.name, np.full(shape, b"", dtype=object)))
        else:
            values = (
                random.standard_normal(shape) if each.dtype in ("FP16", "FP32", "FP64", "BF16") else np.zeros(shape)
            )
            made.append(from_array(each.name, values.astype(numpy_dtype(each.dtype))))
    return made


def in_batches(
    one: Sequence[Tensor], types: Sequence[TensorType], batches: Sequence[int], model: str, *, given: bool
) -> dict[int, Sequence[Tensor]]:
    """Return the inputs of requests by their batch; those of the batch 1 are always among them.

    Args:
        one: Inputs of a request, repeated along their first dimension.
        batches: Sizes wanted.
        given: A user gave them: their first dimension may have any length, which counts as one.

    Raises CallerError if an input has no first dimension, or the model states its length.
    """
    fixed = {each.name for each in types if each.shape and each.shape[0] not in (ANY, ANY_RANK)}
    found: dict[int, Sequence[Tensor]] = {1: one}
    for batch in batches:
        if batch == 1:
            continue
        for each in one:
            if not each.shape or each.name in fixed:
                what = "has a fixed first dimension" if each.shape else "is a scalar"
                raise CallerError(f"the input {each.name!r} of {model} {what}: requests to it have no batch")
            if each.shape[0] != 1 and not given:
                raise CallerError(f"the input {each.name!r} of {model} has no row to repeat")
        found[batch] = [from_array(each.name, np.repeat(to_array(each), batch, axis=0)) for each in one]
    return found
