"""Base of all steps: their operations, their refusals, and images of different sizes in one tensor.

Images that lie *apart* are an array [n] of objects, each one image [height, width, channels]: one tensor cannot hold
images of different sizes. Steps that give all images one size put them together again as [n, height, width, channels].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]
#: Function from the tensors that a step reads to those that it writes, in the manifest's order.
Operation = Callable[..., "tuple[Array, ...]"]
#: Makes a step's operation from its fields and the manifest's folder.
Builder = Callable[[Mapping[str, Any], str], Operation]


class RefusedError(Exception):
    """A step cannot take a tensor; the message says why, and what to do."""


def on_one(work: Callable[[Array], Array]) -> Operation:
    """The operation of a step that takes one tensor and gives one."""
    return lambda array: (work(array),)


def numbers(array: Array) -> Array:
    """The array, whose images are together. Raises RefusedError if its elements are no numbers."""
    array = together(array)
    if array.dtype == object or array.dtype.kind in "SU":
        raise RefusedError("it is text (BYTES) and no numbers; `decode_image` and `tokenize` make numbers of it")
    if array.dtype.kind in "cmM" or array.dtype.names:
        raise RefusedError(f"it has numpy's type {array.dtype}, which the protocol lacks; give real numbers")
    return array


def is_apart(array: Array) -> bool:
    """Return whether it has images that lie apart."""
    return array.dtype == object and array.ndim == 1 and all(isinstance(each, np.ndarray) for each in array)


def apart(images: Sequence[Array]) -> Array:
    """Images in one array of objects."""
    made = np.empty(len(images), dtype=object)
    for index, image in enumerate(images):
        made[index] = image
    return made


def together(array: Array) -> Array:
    """Images that lie apart as one tensor; any other array as it is. Raises RefusedError for different shapes."""
    if not array.size or not is_apart(array):
        return array
    shapes = {image.shape for image in array}
    if len(shapes) > 1:
        listed = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
        raise RefusedError(
            f"it has images of the shapes {listed}, which fit in no tensor; the manifest needs `resize` with `size`, "
            "or `center_crop`"
        )
    return np.stack(list(array))


def for_each(array: Array, work: Callable[[Array], Array]) -> Array:
    """`work` on a tensor, or on each image that lies apart."""
    return apart([work(numbers(image)) for image in array]) if is_apart(array) else work(numbers(array))


def images_of(array: Array) -> list[Array]:
    """The images of one image [height, width, channels], of a batch of them, or of images that lie apart.

    Raises RefusedError if it holds no images.
    """
    if is_apart(array):
        return list(array)
    numbers(array)
    if array.ndim == 3:
        return [array]
    if array.ndim == 4 and len(array):
        return list(array)
    raise RefusedError(
        f"its shape is {list(array.shape)}; an image has the shape [height, width, channels], and a batch of them "
        "[n, height, width, channels] with n from 1 up"
    )


def like(array: Array, images: Sequence[Array]) -> Array:
    """Return images in the form of the input: one image if the input was one image, else a batch."""
    return images[0] if array.dtype != object and array.ndim == 3 else np.stack(list(images))
