"""Steps over numbers: normalize, layout, cast; softmax, pooling and lengths of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trims_predictors.tensors import numpy_dtype
from trims_predictors.transforms.base import RefusedError, for_each, numbers, on_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims_predictors.transforms.base import Array, Operation

#: Vectors shorter than this are divided by it, as `torch.nn.functional.normalize` does.
_LEAST_LENGTH = 1e-12
#: A row without any token is divided by this, as the cards of sentence-transformers models do.
_LEAST_TOKENS = 1e-9


def normalize(fields: Mapping[str, Any], folder: str) -> Operation:
    """(x * scale - mean) / std as FP32, with one mean and std for all, or one for each channel."""
    del folder
    axis = -1 if fields["channels"] == "last" else -3
    mean, std = (np.array(fields[key] or [neutral], np.float32) for key, neutral in (("mean", 0.0), ("std", 1.0)))
    scale = np.float32(fields["scale"])

    def work(array: Array) -> Array:
        shaped = [_along_channels(each, array, axis) for each in (mean, std)]
        made: Array = (array.astype(np.float32) * scale - shaped[0]) / shaped[1]
        return made

    return on_one(lambda array: for_each(array, work))


def _along_channels(values: Array, array: Array, axis: int) -> Array:
    if values.size == 1:
        return values.reshape(())
    if array.ndim < -axis or array.shape[axis] != values.size:
        raise RefusedError(
            f"its shape is {list(array.shape)}, and the manifest gives {values.size} values for its channels, which it "
            f"says are {'last' if axis == -1 else 'first, before height and width'}"
        )
    return values.reshape(-1, *[1] * (-1 - axis))


def layout(fields: Mapping[str, Any], folder: str) -> Operation:
    """Move the channels of one image or a batch before height and width, or behind them."""
    del folder
    to = fields["to"]
    source, target = (-1, -3) if to.endswith("CHW") else (-3, -1)

    def work(array: Array) -> Array:
        if array.ndim not in ((4,) if len(to) == 4 else (3, 4)):
            raise RefusedError(f"its shape is {list(array.shape)}, which {to} does not name; give as many dimensions")
        return np.ascontiguousarray(np.moveaxis(array, source, target))

    if len(to) == 4:
        return on_one(lambda array: work(numbers(array)))  # a batch, so images that lie apart are put together
    return on_one(lambda array: for_each(array, work))


def cast(fields: Mapping[str, Any], folder: str) -> Operation:
    """Another data type; values that it cannot hold are refused, and fractions are cut towards zero."""
    del folder
    name, wanted = fields["dtype"], np.dtype(numpy_dtype(fields["dtype"]))

    def work(array: Array) -> Array:
        if wanted.kind in "iu" and array.dtype.kind != "b" and array.size:
            _check_range(array, name, wanted)
        with np.errstate(over="ignore"):  # what becomes infinite is refused, so numpy need not warn of it
            made = array.astype(wanted)
        if wanted.kind not in "biu":
            _check_finite(array, made, name)
        return made

    return on_one(lambda array: for_each(array, work))


def _check_range(array: Array, name: str, wanted: np.dtype[Any]) -> None:
    limits = np.iinfo(wanted)
    # As Python's numbers, which compare exactly: numpy would round 2**63 - 1 up to a float that is outside.
    least, most = array.min().item(), array.max().item()
    if not (limits.min <= least and most <= limits.max):  # not-a-number compares with nothing
        raise RefusedError(f"it has values from {least} to {most}, which {name} cannot hold")


def _check_finite(array: Array, made: Array, name: str) -> None:
    lost = ~np.isfinite(made)
    if lost.any() and (lost := lost & np.isfinite(array)).any():
        raise RefusedError(
            f"it has the value {array[lost][0]}, which {name} cannot hold; scale it, or take a wider type"
        )


def softmax(fields: Mapping[str, Any], folder: str) -> Operation:
    """Numbers that add up to 1 along an axis; the largest is taken off first, so that none overflows."""
    del folder
    axis = fields["axis"]

    def work(array: Array) -> Array:
        values = floats(array)
        raised = np.exp(values - values.max(axis=checked(axis, values), keepdims=True))
        made: Array = raised / raised.sum(axis=axis, keepdims=True)
        return made

    return on_one(work)


def mean_pool(fields: Mapping[str, Any], folder: str) -> Operation:
    """The mean of the vectors [n, length, width] that a mask [n, length] marks: [n, width]."""
    del fields, folder

    def work(array: Array, mask: Array) -> tuple[Array, ...]:
        values, weights = floats(array), numbers(mask)
        if values.ndim != 3 or weights.shape != values.shape[:2]:
            raise RefusedError(
                f"its shape is {list(values.shape)} and its mask's {list(weights.shape)}; they must be [n, length, "
                "width] and [n, length]"
            )
        factors = weights.astype(values.dtype)[..., None]
        return ((values * factors).sum(axis=1) / np.maximum(factors.sum(axis=1), _LEAST_TOKENS),)

    return work


def l2_normalize(fields: Mapping[str, Any], folder: str) -> Operation:
    """Vectors along an axis, divided by their Euclidean lengths."""
    del folder
    axis = fields["axis"]

    def work(array: Array) -> Array:
        values = floats(array)
        lengths = np.sqrt((values * values).sum(axis=checked(axis, values), keepdims=True))
        made: Array = values / np.maximum(lengths, _LEAST_LENGTH)
        return made

    return on_one(work)


def floats(array: Array) -> Array:
    """Numbers to compute with: FP64 stays, everything else is FP32."""
    return numbers(array) if array.dtype == np.float64 else numbers(array).astype(np.float32)


def checked(axis: int, array: Array) -> int:
    """The axis. Raises RefusedError if the array has none of that number, or nothing along it."""
    if not -array.ndim <= axis < array.ndim or not array.shape[axis]:
        raise RefusedError(f"its shape is {list(array.shape)}, which has nothing along the axis {axis}")
    return axis
