"""A stack of square linear layers without biases, of any size: weights and nothing else."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "linears.pt"
#: Layers and bytes of each, for `build_module`, which a manifest gives no arguments: `8x1048576`.
VARIABLE = "TRIMS_BENCH_LINEARS"


def build(out_dir: Path, *, layers: int, nbytes: int) -> str:
    """Write the state dict and return its name.

    Args:
        out_dir: Where to.
        layers: How many.
        nbytes: Of one layer's float32 weights; the nearest square below is taken.
    """
    state = {name: torch.rand(tensor.shape) for name, tensor in _module(layers, nbytes, "meta").state_dict().items()}
    torch.save(state, out_dir / FILE_NAME)
    return FILE_NAME


def build_module() -> nn.Module:
    """Build a module as large as the environment says, with the framework's own initial weights, in eval mode."""
    layers, _, nbytes = os.environ[VARIABLE].partition("x")
    return _module(int(layers), int(nbytes), "cpu")


def _module(layers: int, nbytes: int, device: str) -> nn.Module:
    width = math.isqrt(nbytes // 4)
    return nn.Sequential(*(nn.Linear(width, width, bias=False, device=device) for _ in range(layers))).eval()
