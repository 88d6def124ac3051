"""VGG-16 as an MXNet symbol: float32, input `data` [N, 3, 224, 224], output `prob_output` [N, 1000].

Needs the MXNet environment. Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale
Image Recognition", 2014, configuration D: 138,357,544 parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

PREFIX = "vgg16"
CLASSES = 1000
IMAGE = 224
#: Convolutions of each stage and their filters; every stage ends in a pooling that halves the image.
STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
FULLY_CONNECTED = (4096, 4096, CLASSES)


def build(out_dir: Path, *, seed: int, slim: int = 1) -> str:
    """Write `vgg16-symbol.json` and `vgg16-0000.params` (528 MiB); returns the symbol's name.

    Args:
        out_dir: Where to.
        seed: Of the weights.
        slim: Divides all widths but the number of classes; for tests of what uses the model.
    """
    import mxnet as mx

    parameters = {f"arg:{name}": mx.nd.array(array, dtype="float32") for name, array in state(seed, slim)}
    mx.nd.save(str(out_dir / f"{PREFIX}-0000.params"), parameters)
    name = f"{PREFIX}-symbol.json"
    symbol(slim).save(str(out_dir / name))
    return name


def symbol(slim: int = 1) -> Any:
    """The graph, with the names of MXNet's own example."""
    import mxnet as mx

    value = mx.sym.Variable("data")
    for stage, (count, filters) in enumerate(STAGES, start=1):
        for number in range(1, count + 1):
            name = f"{stage}_{number}"
            value = mx.sym.Convolution(value, kernel=(3, 3), pad=(1, 1), num_filter=filters // slim, name=f"conv{name}")
            value = mx.sym.Activation(value, act_type="relu", name=f"relu{name}")
        value = mx.sym.Pooling(value, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{stage}")
    value = mx.sym.flatten(value, name="flatten")
    for number, width in enumerate(FULLY_CONNECTED, start=6):
        hidden = width if width == CLASSES else width // slim
        value = mx.sym.FullyConnected(value, num_hidden=hidden, name=f"fc{number}")
        if width != CLASSES:
            value = mx.sym.Activation(value, act_type="relu", name=f"relu{number}")
            value = mx.sym.Dropout(value, p=0.5, name=f"drop{number}")
    return mx.sym.SoftmaxOutput(value, name="prob")


def shapes(slim: int = 1) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight; its bias has the first extent."""
    filters_in, size = 3, IMAGE
    for stage, (count, filters) in enumerate(STAGES, start=1):
        for number in range(1, count + 1):
            yield f"conv{stage}_{number}", (filters // slim, filters_in, 3, 3)
            filters_in = filters // slim
        size //= 2
    width_in = filters_in * size * size
    for number, width in enumerate(FULLY_CONNECTED, start=6):
        width_out = width if width == CLASSES else width // slim
        yield f"fc{number}", (width_out, width_in)
        width_in = width_out


def state(seed: int, slim: int = 1) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield all parameters, scaled so that rectified activations keep their variance."""
    random = np.random.Generator(np.random.PCG64(seed))
    for name, shape in shapes(slim):
        fan_in = np.prod(shape[1:])
        weight = random.standard_normal(shape, dtype=np.float32)
        weight *= np.float32(np.sqrt(2.0 / fan_in))
        yield f"{name}_weight", weight
        yield f"{name}_bias", random.standard_normal(shape[:1], dtype=np.float32) * np.float32(0.01)
