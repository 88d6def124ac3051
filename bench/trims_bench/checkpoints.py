"""Checkpoints of any size, written fast: safetensors files of float32 tensors. Standard library only."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 16 << 20
_ALIGNMENT_BYTES = 64


def write_checkpoint(path: Path, nbytes: int, *, tensors: int = 16, label: str = "") -> Path:
    """Write a safetensors file.

    Args:
        path: Written if there is no file of this name.
        nbytes: Bytes of all tensors together, rounded down to whole tensors of float32.
        tensors: How many, all of one shape, named `tensor.0` and so on.
        label: Files with different labels have different contents.

    Returns:
        The path.
    """
    if path.exists():
        return path
    each = nbytes // tensors // 4 * 4
    names: dict[str, Any] = {
        f"tensor.{number}": {
            "dtype": "F32",
            "shape": [each // 4],
            "data_offsets": [number * each, (number + 1) * each],
        }
        for number in range(tensors)
    }
    header = json.dumps({"__metadata__": {"label": label}, **names}).encode()
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    unfinished = path.with_suffix(".writing")
    with unfinished.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        left = each * tensors
        # Real bytes, so that nothing is sparse or compresses; finite numbers, so that sums warn of nothing.
        block = os.urandom(min(left, _BLOCK_BYTES)).translate(bytes(range(64)) * 4)
        while left:
            left -= file.write(memoryview(block)[: min(left, len(block))])
    unfinished.rename(path)
    return path
