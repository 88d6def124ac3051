"""VGG-16 as a PyTorch module and state dict, with the names of torchvision's. Source: see `vgg16_mxnet`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from trims_bench.builders.vgg16_mxnet import FULLY_CONNECTED, STAGES

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "vgg16.pt"


def build(out_dir: Path, *, seed: int) -> str:
    """Write the state dict, `vgg16.pt` (528 MiB), and return its name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = build_module().state_dict()
    torch.save(dict(state), out_dir / FILE_NAME)
    return FILE_NAME


def build_module() -> nn.Module:
    """The module with the framework's own initial weights, in eval mode: images [N, 3, 224, 224] to logits."""
    features: list[nn.Module] = []
    filters_in = 3
    for count, filters in STAGES:
        for _ in range(count):
            features += [nn.Conv2d(filters_in, filters, 3, padding=1), nn.ReLU(inplace=True)]
            filters_in = filters
        features.append(nn.MaxPool2d(2))
    classifier: list[nn.Module] = []
    width_in = filters_in * 7 * 7
    for width in FULLY_CONNECTED:
        classifier += [nn.Linear(width_in, width), nn.ReLU(inplace=True), nn.Dropout()]
        width_in = width
    parts = {
        "features": nn.Sequential(*features),
        "flatten": nn.Flatten(),
        "classifier": nn.Sequential(*classifier[:-2]),
    }
    made = nn.Sequential()
    for name, part in parts.items():
        made.add_module(name, part)
    return made.eval()
