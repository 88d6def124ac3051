"""ResNet-50 v1.5 as a table, and its seeded weights in the names PyTorch's model zoo gives them.

Shared by the ONNX and the PyTorch builder, so that both hold the same 25,557,032 parameters. numpy only.
Source: He et al., "Deep Residual Learning for Image Recognition", 2015, with the stride in the 3x3
convolution (v1.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CLASSES = 1000
BATCH_NORM_EPSILON = 1e-5
#: Bottlenecks of each stage and the width of their 3x3 convolution.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


@dataclass(frozen=True, slots=True)
class Conv:
    """One convolution and the batch normalisation after it.

    Attributes:
        name: Of the convolution's parameters.
        norm: Of the normalisation's parameters.
        shape: (filters out, filters in, kernel, kernel).
        stride: Of both axes; the padding keeps the size at stride 1.
    """

    name: str
    norm: str
    shape: tuple[int, int, int, int]
    stride: int = 1

    @property
    def padding(self) -> int:
        """Zeros on each side."""
        return self.shape[2] // 2


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Three convolutions beside a shortcut, which is itself a convolution where the shape changes."""

    name: str
    convs: tuple[Conv, Conv, Conv]
    downsample: Conv | None


STEM = Conv("conv1", "bn1", (64, 3, 7, 7), 2)


def bottlenecks() -> Iterator[Bottleneck]:
    """Yield all sixteen bottlenecks, in order."""
    filters_in = STEM.shape[0]
    for stage, (count, width) in enumerate(STAGES, start=1):
        for number in range(count):
            stride = 2 if number == 0 and stage > 1 else 1
            yield _bottleneck(f"layer{stage}.{number}", filters_in, width, stride, shortcut=number == 0)
            filters_in = width * EXPANSION


def _bottleneck(name: str, filters_in: int, width: int, stride: int, *, shortcut: bool) -> Bottleneck:
    out = width * EXPANSION
    convs = (
        Conv(f"{name}.conv1", f"{name}.bn1", (width, filters_in, 1, 1)),
        Conv(f"{name}.conv2", f"{name}.bn2", (width, width, 3, 3), stride),
        Conv(f"{name}.conv3", f"{name}.bn3", (out, width, 1, 1)),
    )
    down = Conv(f"{name}.downsample.0", f"{name}.downsample.1", (out, filters_in, 1, 1), stride)
    return Bottleneck(name, convs, down if shortcut else None)


def state(seed: int) -> dict[str, NDArray[Any]]:
    """Return all parameters and buffers, float32 (batch counters int64), in the order of PyTorch's state dict."""
    random = np.random.Generator(np.random.PCG64(seed))
    tensors = dict(_conv_state(STEM, random, gain=1.0))
    for block in bottlenecks():
        for conv in block.convs[:2]:
            tensors.update(_conv_state(conv, random, gain=1.0))
        # The residual branch starts small, so that sixteen sums do not grow the activations.
        tensors.update(_conv_state(block.convs[2], random, gain=0.25))
        if block.downsample is not None:
            tensors.update(_conv_state(block.downsample, random, gain=1.0))
    features = STAGES[-1][1] * EXPANSION
    tensors["fc.weight"] = _normal(random, (CLASSES, features), features**-0.5)
    tensors["fc.bias"] = _normal(random, (CLASSES,), 0.01)
    return tensors


def _conv_state(conv: Conv, random: np.random.Generator, *, gain: float) -> Iterator[tuple[str, NDArray[Any]]]:
    filters, fan_in = conv.shape[0], conv.shape[1] * conv.shape[2] * conv.shape[3]
    yield f"{conv.name}.weight", _normal(random, conv.shape, (2.0 / fan_in) ** 0.5)
    yield f"{conv.norm}.weight", (gain * random.uniform(0.8, 1.2, filters)).astype(np.float32)
    yield f"{conv.norm}.bias", _normal(random, (filters,), 0.05)
    yield f"{conv.norm}.running_mean", _normal(random, (filters,), 0.05)
    yield f"{conv.norm}.running_var", random.uniform(0.8, 1.2, filters).astype(np.float32)
    yield f"{conv.norm}.num_batches_tracked", np.array(1, dtype=np.int64)


def _normal(random: np.random.Generator, shape: tuple[int, ...], deviation: float) -> NDArray[Any]:
    return random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
