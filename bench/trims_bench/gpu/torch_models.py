"""PyTorch models of the GPU's figures, by name: linear layers and VGG-16 need PyTorch alone, others transformers."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "model.pt"
#: Filters of VGG-16's convolutions; 0 is a pooling that halves the picture. Simonyan and Zisserman, 2014.
_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def build(out_dir: Path, *, model: str, seed: int = 7, **shape: Any) -> str:
    """Write a state dict with the framework's initial weights of a seed, and return its name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = build_module(model, **shape).state_dict()
    torch.save(dict(state), out_dir / FILE_NAME)
    return FILE_NAME


def build_module(model: str, **shape: Any) -> nn.Module:
    """Return a module in eval mode: `linears`, `vgg16`, or one of `trims_bench.models.ARCHITECTURES`."""
    if model == "linears":
        return _linears(**shape).eval()
    if model == "vgg16":
        return _vgg16().eval()
    from trims_bench.models import torch_module

    return torch_module(model, **shape)


def _linears(layers: int, nbytes: int) -> nn.Module:
    """Square layers without biases, weights and nothing else; `nbytes` of each, rounded down to a square."""
    width = math.isqrt(nbytes // 4)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def _vgg16() -> nn.Module:
    """Images [N, 3, 224, 224] to logits [N, 1000]."""
    parts: list[nn.Module] = []
    filters_in = 3
    for filters in _VGG16:
        if filters:
            parts += [nn.Conv2d(filters_in, filters, 3, padding=1), nn.ReLU(inplace=True)]
            filters_in = filters
        else:
            parts.append(nn.MaxPool2d(2))
    parts.append(nn.Flatten())
    for width_in, width in itertools.pairwise((filters_in * 7 * 7, 4096, 4096, 1000)):
        parts += [nn.Linear(width_in, width), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*parts[:-2])
