"""torch's names for the dtypes of a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from trims.core.layout import TensorSpec

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
if hasattr(torch, "float8_e8m0fnu"):  # torch >= 2.7
    DTYPES["F8_E8M0"] = torch.float8_e8m0fnu


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Return the tensor's torch dtype.

    Raises NotSupportedError that names the tensor if this torch has no such dtype.
    """
    dtype = DTYPES.get(spec.dtype)
    if dtype is None:
        raise NotSupportedError(f"torch {torch.__version__} has no {spec.dtype} (tensor {spec.name!r})")
    return dtype
