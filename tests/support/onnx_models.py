"""Small ONNX models, their inputs and the answers ONNX Runtime gives alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


NO_PREPACKING = "session.disable_prepacking"


def write_image(plan: Any, path: Path) -> Path:
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, plan.nbytes)
        plan.write(file.fileno())
    return path


def value(name: str, onnx_type: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, onnx_type, shape)


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any]) -> Path:
    made = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def convolution(folder: Path) -> Path:
    """Convolution, batch normalisation, residual, pooling, Gemm: what an optimizer rewrites most."""
    random = np.random.default_rng(3)

    def draw(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) / 8).astype(np.float32)

    weights = {"w1": draw(32, 3, 3, 3), "w2": draw(32, 32, 3, 3), "fc": draw(48, 32), "bias": draw(48)}
    norm = {name: np.abs(draw(32)) + 0.5 for name in ("scale", "shift", "mean", "var")}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", *norm], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w2"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["h"]),
        helper.make_node("Gemm", ["h", "fc", "bias"], ["y"], transB=1),
    ]
    inputs = [value("x", TensorProto.FLOAT, ["N", 3, "H", "W"])]
    return save(folder / "conv.onnx", nodes, inputs, [value("y", TensorProto.FLOAT, ["N", 48])], weights | norm)


def attention(folder: Path) -> Path:
    """Reshape by constants, transposes, batched products, layer normalisation, embedding lookup."""
    random = np.random.default_rng(5)
    weights = {
        "table": random.standard_normal((100, 64)).astype(np.float32),
        "qkv": (random.standard_normal((64, 192)) / 8).astype(np.float32),
        "heads": np.array([0, -1, 3, 4, 16], np.int64),
        "gain": np.ones(16, np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["a"]),
        helper.make_node("MatMul", ["a", "qkv"], ["b"]),
        helper.make_node("Reshape", ["b", "heads"], ["c"]),
        helper.make_node("Transpose", ["c"], ["d"], perm=[2, 0, 3, 1, 4]),
        helper.make_node("Split", ["d"], ["q", "k", "v"], axis=0),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 2, 4, 3]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
        helper.make_node("LayerNormalization", ["o", "gain"], ["y"]),
    ]
    inputs = [value("ids", TensorProto.INT64, ["N", "T"])]
    outputs = [value("y", TensorProto.FLOAT, [1, "N", 4, "T", 16])]
    return save(folder / "attention.onnx", nodes, inputs, outputs, weights)


def feeds(main: Path) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(11)
    if main.stem == "conv":
        return {"x": random.standard_normal((2, 3, 20, 20)).astype(np.float32)}
    if main.stem == "attention":
        return {"ids": random.integers(0, 100, (2, 7))}
    return {"x": random.standard_normal(1000).astype(np.float32), "c": np.array(True)}


def own_answer(main: Path, *, level: str = "ORT_ENABLE_ALL", prepack: bool = False) -> NDArray[Any]:
    """Return the answer that ONNX Runtime computes from the original file."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry(NO_PREPACKING, "0" if prepack else "1")
    session = onnxruntime.InferenceSession(main, options, providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, feeds(main))
    return np.asarray(answer)


def classifier(path: Path, *, zip_map: bool = True) -> Path:
    """Two classes of two numbers, as skl2onnx exports scikit-learn: `ZipMap` makes maps of probabilities."""
    linear = helper.make_node(
        "LinearClassifier",
        ["X"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        classlabels_ints=[3, 7],
        coefficients=[1.0, 0.0, 0.0, 1.0],
        intercepts=[0.0, 0.0],
        post_transform="SOFTMAX",
    )
    mapped = helper.make_node(
        "ZipMap", ["scores"], ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[3, 7]
    )
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    probability = helper.make_value_info("output_probability", helper.make_sequence_type_proto(kind))
    outputs = [value("label", TensorProto.INT64, ["n"]), probability]
    nodes = [linear, mapped]
    if not zip_map:
        nodes, outputs = [linear], [outputs[0], value("scores", TensorProto.FLOAT, ["n", 2])]
    graph = helper.make_graph(nodes, "g", [value("X", TensorProto.FLOAT, ["n", 2])], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
