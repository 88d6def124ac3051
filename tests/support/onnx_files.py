"""Small ONNX files for tests of the converter, some of them written field by field."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx.converter import OnnxConverter  # noqa: E402
from trims.image.check import check_image  # noqa: E402
from trims.image.reader import ImageView  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


CONVERTER = OnnxConverter()


def value(name: str, onnx_type: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, onnx_type, shape)


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any]) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


def linear(folder: Path, *, external: str | None = None, columns: int = 64) -> Path:
    """`y = x @ weight + bias`, with a weight large enough to leave the program."""
    weight = np.arange(32 * columns, dtype=np.float32).reshape(32, columns)
    path = save(
        folder / "linear.onnx",
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["y"])],
        [value("x", TensorProto.FLOAT, ["N", 32])],
        [value("y", TensorProto.FLOAT, ["N", columns])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(weight[0], "bias")],
    )
    if external is not None:
        model = onnx.load(path)
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=1024)
    return path


def image(main: Path, **options: Any) -> ImageView:
    plan = CONVERTER.plan(Artifact("onnx", CONVERTER.files(main, options), options))
    target = bytearray(plan.nbytes)
    plan.write_into(memoryview(target))
    view = ImageView(memoryview(bytes(target)))
    check_image(view)
    return view


def located(location: str | bytes | None, *, where: str = "initializer") -> bytes:
    """A model whose one tensor is stored externally, written field by field."""

    def field(number: int, payload: bytes) -> bytes:
        return bytes([*varint(number << 3 | 2), *varint(len(payload))]) + payload

    text = location.encode() if isinstance(location, str) else location
    entry = b"" if text is None else field(13, field(1, b"location") + field(2, text))
    tensor = field(8, b"w") + b"\x70\x01" + entry
    paths = {
        "initializer": (7, 5),
        "attribute": (7, 1, 5, 5),
        "subgraph": (7, 1, 5, 6, 5),
        "subgraph list": (7, 1, 5, 11, 5),
        "sparse values": (7, 15, 1),
        "function": (25, 7, 5, 5),
        "training": (20, 2, 5),
    }
    for number in reversed(paths[where]):
        tensor = field(number, tensor)
    return tensor if paths[where][0] == 7 else field(7, b"") + tensor


def varint(number: int) -> list[int]:
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return [*out, number]
