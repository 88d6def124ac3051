"""BERT-base as ONNX, as an exporter writes it: float32, opset 17, seeded weights, GELU and softmax in single steps.

Inputs `input_ids` and `attention_mask` [N, T], output `last_hidden_state` [N, T, 768].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "bert-base.onnx"
_OPSET, _IR_VERSION = 17, 8
_VOCABULARY, _POSITIONS, _HEADS = 30522, 512, 12


def build(out_dir: Path, *, seed: int, layers: int = 12, width: int = 768) -> str:
    """Write `bert-base.onnx` (415 MiB) and return its name."""
    (out_dir / FILE_NAME).write_bytes(model(seed, layers, width).SerializeToString(deterministic=True))
    return FILE_NAME


def model(seed: int, layers: int, width: int) -> Any:
    """The ModelProto."""
    graph = _Graph(np.random.default_rng(seed), width)
    value = graph.embeddings()
    for layer in range(layers):
        value = graph.layer(f"layer{layer}", value)
    graph.add("Identity", [value], "last_hidden_state")
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", "T"]) for n in ("input_ids", "attention_mask")]
    out = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["N", "T", width])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "bert", ids, [out], graph.weights),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="trims_bench",
    )
    onnx.checker.check_model(made)
    return made


class _Graph:
    """Nodes and weights as they are added."""

    def __init__(self, random: np.random.Generator, width: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = random
        self._width = width
        self._count = 0

    def add(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """A node; returns the name of its output."""
        self._count += 1
        name = output or f"v{self._count}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A seeded matrix or vector."""
        self.weights.append(
            numpy_helper.from_array(self._random.standard_normal(shape, np.float32) * np.float32(0.02), name)
        )
        return name

    def constant(self, name: str, value: Any) -> str:
        """A small constant, there once."""
        if name not in {each.name for each in self.weights}:
            self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def embeddings(self) -> str:
        """Words and positions, normalized."""
        words = self.add("Gather", [self.weight("words", _VOCABULARY, self._width), "input_ids"])
        length = self.add("Shape", ["input_ids"], start=1)
        every = self.constant("zero", np.zeros(1, np.int64))
        positions = self.add("Slice", [self.weight("positions", _POSITIONS, self._width), every, length])
        return self._normal("embeddings", self.add("Add", [words, positions]))

    def layer(self, name: str, value: str) -> str:
        """Attention and two products, each normalized with what went in."""
        attended = self._linear(f"{name}.output", self._attention(name, value), self._width, self._width)
        value = self._normal(f"{name}.first", self.add("Add", [attended, value]))
        wide = self._gelu(self._linear(f"{name}.wide", value, self._width, 4 * self._width))
        narrow = self._linear(f"{name}.narrow", wide, 4 * self._width, self._width)
        return self._normal(f"{name}.second", self.add("Add", [narrow, value]))

    def _attention(self, name: str, value: str) -> str:
        heads = self.constant("heads", np.array([0, 0, _HEADS, self._width // _HEADS], np.int64))
        query, key, values = (
            self.add("Reshape", [self._linear(f"{name}.{part}", value, self._width, self._width), heads])
            for part in ("query", "key", "value")
        )
        query, values = (self.add("Transpose", [each], perm=[0, 2, 1, 3]) for each in (query, values))
        scores = self.add("MatMul", [query, self.add("Transpose", [key], perm=[0, 2, 3, 1])])
        root = self.constant("root", np.float32((self._width // _HEADS) ** 0.5))
        masked = self.add("Add", [self.add("Div", [scores, root]), self._mask()])
        mixed = self.add("MatMul", [self.add("Softmax", [masked], axis=-1), values])
        joined = self.constant("joined", np.array([0, 0, self._width], np.int64))
        return self.add("Reshape", [self.add("Transpose", [mixed], perm=[0, 2, 1, 3]), joined])

    def _mask(self) -> str:
        """0 where the mask is 1, and a large negative number where it is 0; made once."""
        if "mask" not in {output for node in self.nodes for output in node.output}:
            axes = self.constant("axes", np.array([1, 2], np.int64))
            wide = self.add("Cast", [self.add("Unsqueeze", ["attention_mask", axes])], to=TensorProto.FLOAT)
            off = self.add("Sub", [self.constant("one", np.float32(1)), wide])
            self.add("Mul", [off, self.constant("far", np.float32(-10000))], "mask")
        return "mask"

    def _linear(self, name: str, value: str, wide: int, high: int) -> str:
        product = self.add("MatMul", [value, self.weight(f"{name}.weight", wide, high)])
        return self.add("Add", [self.weight(f"{name}.bias", high), product])

    def _normal(self, name: str, value: str) -> str:
        gain = self.constant(f"{name}.gain", np.ones(self._width, np.float32))
        return self.add("LayerNormalization", [value, gain, self.weight(f"{name}.shift", self._width)], axis=-1)

    def _gelu(self, value: str) -> str:
        root = self.constant("root2", np.float32(2**0.5))
        bent = self.add("Erf", [self.add("Div", [value, root])])
        raised = self.add("Add", [bent, self.constant("one", np.float32(1))])
        return self.add("Mul", [self.add("Mul", [value, raised]), self.constant("half", np.float32(0.5))])
