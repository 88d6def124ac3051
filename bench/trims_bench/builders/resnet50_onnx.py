"""ResNet-50 as ONNX: float32, opset 17, input `image` [N, 3, 224, 224], output `logits` [N, 1000].

Convolution and batch normalisation stay separate nodes, as in the published files, so that a runtime's own
load has its usual work to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from trims_bench.builders import resnet50
from trims_bench.builders.resnet50 import BATCH_NORM_EPSILON, CLASSES, STEM, Conv, bottlenecks

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "resnet50.onnx"
OPSET = 17
IR_VERSION = 8


def build(out_dir: Path, *, seed: int) -> str:
    """Write `resnet50.onnx` (98 MiB) and return its name."""
    data = model(seed).SerializeToString(deterministic=True)
    (out_dir / FILE_NAME).write_bytes(data)
    return FILE_NAME


def model(seed: int) -> Any:
    """The ModelProto."""
    nodes = _Nodes()
    nodes.head(_body(nodes))
    state = {name: array for name, array in resnet50.state(seed).items() if not name.endswith("num_batches_tracked")}
    graph = helper.make_graph(
        nodes.made,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in state.items()],
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="trims_bench",
    )
    onnx.checker.check_model(made)
    return made


def _body(nodes: _Nodes) -> str:
    value = nodes.add("Relu", [nodes.conv(STEM, "image")])
    value = nodes.add("MaxPool", [value], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in bottlenecks():
        shortcut = nodes.conv(block.downsample, value) if block.downsample else value
        for conv in block.convs[:2]:
            value = nodes.add("Relu", [nodes.conv(conv, value)])
        value = nodes.add("Relu", [nodes.add("Add", [nodes.conv(block.convs[2], value), shortcut])])
    return value


class _Nodes:
    """The graph under construction; every value gets the name of the node that makes it."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def add(self, kind: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        name = output or f"{kind.lower()}_{len(self.made)}"
        self.made.append(helper.make_node(kind, inputs, [name], name=f"/{name}", **attributes))
        return name

    def conv(self, conv: Conv, value: str) -> str:
        value = self.add(
            "Conv",
            [value, f"{conv.name}.weight"],
            kernel_shape=list(conv.shape[2:]),
            strides=[conv.stride] * 2,
            pads=[conv.padding] * 4,
        )
        norm = [f"{conv.norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        return self.add("BatchNormalization", [value, *norm], epsilon=BATCH_NORM_EPSILON)

    def head(self, value: str) -> None:
        value = self.add("Flatten", [self.add("GlobalAveragePool", [value])], axis=1)
        self.add("Gemm", [value, "fc.weight", "fc.bias"], output="logits", transB=1)
