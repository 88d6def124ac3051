"""ResNet-50 as a PyTorch module and state dict, with the names and the architecture of torchvision's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trims_bench.builders import resnet50

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "resnet50.pt"


def build(out_dir: Path, *, seed: int) -> str:
    """Write the state dict, `resnet50.pt` (98 MiB), and return its name."""
    state = {name: torch.from_numpy(array) for name, array in resnet50.state(seed).items()}
    torch.save(state, out_dir / FILE_NAME)
    return FILE_NAME


def build_module() -> nn.Module:
    """The module with the framework's own initial weights, in eval mode."""
    return ResNet50().eval()


class ResNet50(nn.Module):  # type: ignore[misc]
    """Images [N, 3, 224, 224] to logits [N, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(resnet50.STEM)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        stages: dict[str, list[nn.Module]] = {}
        for block in resnet50.bottlenecks():
            stages.setdefault(block.name.partition(".")[0], []).append(Bottleneck(block))
        for name, blocks in stages.items():
            self.add_module(name, nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(resnet50.STAGES[-1][1] * resnet50.EXPANSION, resnet50.CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """Logits."""
        value = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        for number in range(1, len(resnet50.STAGES) + 1):
            value = self.get_submodule(f"layer{number}")(value)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(value), 1))
        return logits


class Bottleneck(nn.Module):  # type: ignore[misc]
    """Three convolutions beside a shortcut."""

    def __init__(self, block: resnet50.Bottleneck) -> None:
        super().__init__()
        for number, conv in enumerate(block.convs, start=1):
            layer, norm = _conv(conv)
            self.add_module(f"conv{number}", layer)
            self.add_module(f"bn{number}", norm)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(*_conv(block.downsample)) if block.downsample else None

    def forward(self, value: Tensor) -> Tensor:
        """Return a tensor of the same extents, or of half of them with more filters."""
        shortcut = value if self.downsample is None else self.downsample(value)
        for number in (1, 2, 3):
            value = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(value))
            value = self.relu(value if number != 3 else value + shortcut)
        return value


def _conv(conv: resnet50.Conv) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    filters, filters_in, kernel, _ = conv.shape
    layer = nn.Conv2d(filters_in, filters, kernel, stride=conv.stride, padding=conv.padding, bias=False)
    return layer, nn.BatchNorm2d(filters, eps=resnet50.BATCH_NORM_EPSILON)
