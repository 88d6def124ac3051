"""Tensors that go into a model and come out, as manifests and graphs describe them.

Data types have the names of the Open Inference Protocol (`FP32`, `INT64`, `BYTES` for text), because that is what a
request states. Predictors' processes import this, so it needs nothing but the standard library. Not covered: the values
themselves (`trims_predictors.tensors`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Data type -> bytes of one element; None for BYTES, whose elements have lengths of their own.
ITEM_BYTES: Mapping[str, int | None] = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "BYTES": None,
}  # fmt: skip
#: The name of a tensor.
TENSOR = re.compile(r"^[^\x00-\x1f]{1,256}\Z")
#: Dimensions of one tensor; numpy can have no more.
MOST_DIMENSIONS = 32
#: Length of one dimension: protocols and frameworks count in 64 bits.
MOST_LENGTH = (1 << 62) - 1
ANY = -1
#: The one length of a shape of which not even the number of dimensions is known.
ANY_RANK = -2


@dataclass(frozen=True, slots=True)
class TensorType:
    """One input or output.

    Attributes:
        dtype: A name of the Open Inference Protocol.
        shape: Lengths of its dimensions; -1 for any. `(-2,)` if a graph does not say how many dimensions there are.
        labels: File with one line for each element of an output, relative to the manifest's folder; or empty.
        layout: Layout of an image: `NCHW` or `NHWC`, with or without the batch dimension in `shape`; empty if not
            stated.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = field(default="", compare=False)
    labels: str = field(default="", compare=False)

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape is one."""
        return self.shape == (ANY_RANK,) or (
            len(shape) == len(self.shape)
            and all(wanted in (ANY, given) for wanted, given in zip(self.shape, shape, strict=True))
        )


def check_tensors(tensors: Sequence[TensorType], where: str) -> None:
    """Raise ManifestError for inputs or outputs that no request can have, whatever the types of their parts."""
    for index, each in enumerate(tensors):
        if not _may_be_requested(each):
            raise ManifestError(
                f"{where}[{index}]: {each!r:.200} is no tensor: it needs a name of 1 to 256 printable characters, one "
                f"of the types {', '.join(ITEM_BYTES)}, and a shape of at most {MOST_DIMENSIONS} lengths from {ANY} up"
            )
    check_names(tensors, where)


def check_names(tensors: Sequence[TensorType], where: str) -> None:
    """Raise ManifestError for two tensors of one name."""
    names = set()
    for each in tensors:
        if each.name in names:
            raise ManifestError(f"{where}: {each.name!r} is there twice; give each tensor a name of its own")
        names.add(each.name)


#: Inputs of a graph, and its outputs, that a signature may have.
MOST_TENSORS = 1024


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model.

    Attributes:
        inputs: Empty if they are not known.
        outputs: Empty in the same way.
        seen: Whether they are those of a run, with any length for each dimension: others may be right as well.
    """

    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    seen: bool = False

    @property
    def is_valid(self) -> bool:
        """Whether names, types, shapes and their numbers are such as requests may have."""
        return all(
            len(tensors) <= MOST_TENSORS
            and len({each.name for each in tensors}) == len(tensors)
            and all(_may_be_requested(each) for each in tensors)
            for tensors in (self.inputs, self.outputs)
        )


NO_SIGNATURE = Signature()


def _may_be_requested(tensor: TensorType) -> bool:
    lengths = len(tensor.shape) <= MOST_DIMENSIONS and all(
        type(length) is int and ANY <= length <= MOST_LENGTH for length in tensor.shape
    )
    lengths = lengths or tensor.shape == (ANY_RANK,)
    named = type(tensor.name) is str and TENSOR.match(tensor.name) is not None
    return lengths and named and tensor.dtype in (*ITEM_BYTES,)
