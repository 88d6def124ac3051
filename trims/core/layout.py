"""Contents of an image: names, dtypes, shapes and offsets of its tensors.

Pure description; the byte encoding is `trims.image`'s business. Offsets count from the start of the image's
data block, sizes are bytes, dtypes carry the names safetensors gives them. Every cold start of a client imports this,
so it does without dataclasses, whose import and class building cost milliseconds.
"""

from __future__ import annotations

from math import prod

from trims.core.errors import ImageError
from trims.core.named import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Bytes per element. The order is the dtype's number in the binary index: append only.
DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1, "I8": 1,
    "U16": 2, "I16": 2,
    "U32": 4, "I32": 4,
    "U64": 8, "I64": 8,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "C64": 8,
}  # fmt: skip
DTYPES: tuple[str, ...] = tuple(DTYPE_BYTES)
DTYPE_NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(DTYPES)}

#: Reserved by safetensors: no tensor has this name.
RESERVED = "__metadata__"
#: Tensors start at multiples of this many bytes: a cache line, and what SIMD loads of all three frameworks want.
TENSOR_ALIGNMENT_BYTES = 64
#: Most dimensions of a tensor: numpy's limit, the largest of all readers'.
MAX_DIMENSIONS = 64


def element_count(shape: tuple[int, ...]) -> int:
    """Return the number of elements; 1 for a scalar, 0 if any dimension is 0."""
    return prod(shape)


class TensorSpec(NamedTuple):
    """One tensor of an image.

    Attributes:
        name: Any Unicode string except `__metadata__`, which safetensors keeps for itself.
        dtype: A key of `DTYPE_BYTES`.
        shape: Extents, row-major and dense; `()` for a scalar.
        offset: Bytes from the start of the data block.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return element_count(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def end(self) -> int:
        """First byte after the tensor, from the start of the data block."""
        return self.offset + self.nbytes


class Layout:
    """The tensors of one image by name, in the order of the artifact. Tied tensors share an offset."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: Mapping[str, TensorSpec]) -> None:
        self.tensors = tensors

    @classmethod
    def of(cls, specs: Iterable[TensorSpec]) -> Layout:
        """Collect specs; a name that comes twice is an ImageError."""
        tensors: dict[str, TensorSpec] = {}
        for spec in specs:
            if spec.name in tensors:
                raise ImageError(f"tensor {spec.name!r} is described twice")
            tensors[spec.name] = spec
        return cls(tensors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # a mapping is inside

    def __repr__(self) -> str:
        return f"<Layout of {len(self)} tensors, {self.nbytes} bytes>"

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Return the bytes of all distinct tensors: what is tied counts once."""
        largest: dict[int, int] = {}
        for spec in self:
            largest[spec.offset] = max(spec.nbytes, largest.get(spec.offset, 0))
        return sum(largest.values())

    def validate(self, data_bytes: int, *, aligned: bool = True) -> None:
        """Check every tensor against a data block of this many bytes. Raises ImageError naming the tensor.

        Args:
            aligned: Whether each tensor must be aligned to its element. In an artifact that is served in place, tensors
                lie as its author left them.
        """
        for spec in self:
            _validate_tensor(spec, data_bytes, aligned)


def _validate_tensor(spec: TensorSpec, data_bytes: int, aligned: bool) -> None:
    """Validate one tensor. Each attach does this, so the tuple is unpacked once instead of asking properties."""
    name, dtype, shape, offset = spec
    width = DTYPE_BYTES.get(dtype)
    if width is None:
        raise ImageError(f"tensor {name!r} has the unknown dtype {dtype!r}")
    if len(shape) > MAX_DIMENSIONS or (shape and min(shape) < 0):
        raise ImageError(f"tensor {name!r} has the impossible shape {shape}")
    end = offset + prod(shape) * width
    if offset < 0 or end > data_bytes:
        raise ImageError(f"tensor {name!r} claims bytes {offset} to {end} of a data block of {data_bytes}")
    if aligned and offset % width:
        raise ImageError(f"tensor {name!r} starts at {offset}, unaligned for {dtype}")
    if name == RESERVED:
        raise ImageError(f"a tensor may not be called {RESERVED!r}: safetensors keeps that name for itself")
