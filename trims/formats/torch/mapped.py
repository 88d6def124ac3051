"""Tensors over mappings of the files in which they lie, for converters that need their values."""

from __future__ import annotations

import mmap
import warnings
from typing import TYPE_CHECKING, Any

import torch

from trims.core.errors import NotSupportedError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.formats.torch.tensors import DTYPES
from trims.image.source import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trims.image.plan import SourceTensor

#: torch's dtypes, by ours.
TORCH_DTYPES = {ours: getattr(torch, name) for name, ours in DTYPES.items() if hasattr(torch, name)}


def mapped(sources: Sequence[SourceTensor], *, writable: bool = False) -> dict[str, torch.Tensor]:
    """Return tensors over mappings of the files in which they lie: read-only, or private ones that may be written."""
    access = mmap.ACCESS_COPY if writable else mmap.ACCESS_READ
    mappings: dict[Path, mmap.mmap] = {}
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a write would end this process, and nothing writes
        for each in sources:
            dtype, count = _dtype(each), element_count(each.shape)
            if each.span is None or not count:
                found[each.name] = torch.empty(each.shape, dtype=dtype)
                continue
            path = each.span.file.path
            if path not in mappings:
                with open_source(path) as fd:
                    mappings[path] = mmap.mmap(fd, 0, access=access)
            aligned = each.span.offset % DTYPE_BYTES[each.dtype] == 0
            data: Any = (
                mappings[path] if aligned else mappings[path][each.span.offset :][: count * DTYPE_BYTES[each.dtype]]
            )
            at = each.span.offset if aligned else 0
            found[each.name] = torch.frombuffer(data, dtype=dtype, count=count, offset=at).view(each.shape)
    return found


def _dtype(source: SourceTensor) -> torch.dtype:
    dtype = TORCH_DTYPES.get(source.dtype)
    if dtype is None:
        raise NotSupportedError(f"torch {torch.__version__} has no {source.dtype} (tensor {source.name!r})")
    return dtype
