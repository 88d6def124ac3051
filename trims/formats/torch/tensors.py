"""PyTorch tensors on their way into an image: dtype, shape, ties, and a copy of their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError
from trims.image.plan import SourceTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

#: torch's dtype, by its name, -> ours.
DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "complex64": "C64",
}  # fmt: skip


def describe(tensors: Mapping[str, torch.Tensor], path: Path) -> list[SourceTensor]:
    """Return tensors on their way into an image, in order; the second of two in the same memory is tied to the first.

    Raises ArtifactError for a tensor that is more, or less, than dense bytes of a known dtype.
    """
    owners: dict[tuple[Any, ...], str] = {}
    found = []
    for name, tensor in tensors.items():
        dtype, shape = dtype_of(tensor, name, path), tuple(tensor.shape)
        place = (tensor.data_ptr(), tensor.dtype, shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        owner = owners.setdefault(place, name) if tensor.numel() else name
        if owner == name:
            found.append(SourceTensor(name, dtype, shape, fill=filler(tensor)))
        else:
            found.append(SourceTensor(name, dtype, shape, tied_to=owner))
    return found


def dtype_of(tensor: torch.Tensor, name: str, path: Path) -> str:
    """Our name of its dtype. Raises ArtifactError for what is not a plain dense tensor in memory."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise ArtifactError(f"{path}: tensor {name!r} is a {type(tensor).__name__}; only plain tensors can be shared")
    if tensor.is_quantized or tensor.layout is not torch.strided or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise ArtifactError(f"{path}: tensor {name!r} is {kind}; save it dense (tensor.to_dense(), dequantize())")
    if tensor.device.type != "cpu":
        raise ArtifactError(f"{path}: tensor {name!r} is on device {tensor.device}: it has no bytes")
    dtype = DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        remedy = "; save it as complex64" if tensor.dtype.is_complex else ""
        raise ArtifactError(f"{path}: tensor {name!r} has the dtype {tensor.dtype}, which images do not know{remedy}")
    return dtype


def filler(tensor: torch.Tensor) -> Callable[[memoryview], None]:
    """Writes the tensor's elements, row-major, into the memory it is given."""

    def fill(place: memoryview) -> None:
        import torch

        target = torch.frombuffer(place, dtype=tensor.dtype, count=tensor.numel())
        target.view(tensor.shape).copy_(tensor.detach())

    return fill
