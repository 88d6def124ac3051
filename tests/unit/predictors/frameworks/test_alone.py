"""Models that a framework loads alone, from real files; MXNet's are in tests/e2e/test_evaluations.py."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.numpy import save_file
from trims_predictors.api import Context
from trims_predictors.frameworks import alone

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUILTIN = "trims_predictors.frameworks"
CODE = """
import torch

def build(size):
    return torch.nn.Linear(size, 1, bias=False)

def times(weights, inputs):
    return {"y": inputs["x"] * weights["scale"]}
"""


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "alone_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield str(tmp_path)
    sys.modules.pop("alone_code", None)


def answered(call: str, how: str, origin: str, artifact: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    made = alone.make(call, how, origin, {"options": {}, **artifact})
    weights: Any = None
    made.load(weights, Context("m", threads=1))
    return {name: np.asarray(value).tolist() for name, value in made.predict(inputs).items()}


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_function_gets_arrays_as_their_library_reads_them(kind: str, origin: str, tmp_path: Path) -> None:
    path = tmp_path / f"w.{kind}"
    arrays = {"scale": np.array([3.0])}
    if kind == "npz":
        np.savez(path, **arrays)
    else:
        save_file(arrays, path)
    artifact = {"path": str(path), "format": kind}
    assert answered("alone_code:times", "function", origin, artifact, x=np.array([2.0])) == {"y": [6.0]}


def test_an_npy_file_is_one_array(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(2))
    assert alone._npy(tmp_path / "w.npy")["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["torch", "safetensors", "under a key"])
def test_a_module_loads_its_state_dict(kind: str, origin: str, tmp_path: Path) -> None:
    path, state = tmp_path / "w.pt", {"weight": torch.full((1, 2), 2.0)}
    options: dict[str, Any] = {"module": "alone_code:build", "module_args": {"size": 2}}
    if kind == "safetensors":
        save_file({"weight": state["weight"].numpy()}, path)
    elif kind == "torch":
        torch.save(state, path)
    else:
        torch.save({"net": state, "epoch": 3}, path)
        options["state_key"] = "net"
    artifact = {"path": str(path), "format": "torch" if kind == "under a key" else kind, "options": options}
    found = answered(f"{BUILTIN}.torch:TorchPredictor", "class", origin, artifact, x=np.ones((1, 2), "f4"))
    assert found == {"output": [[4.0]]}


def test_a_graph_is_a_session_over_its_file(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    artifact = {"path": str(tmp_path / "m.onnx"), "format": "onnx"}
    found = answered(f"{BUILTIN}.onnxruntime:OnnxPredictor", "class", "", artifact, x=np.ones(1, "f4"))
    assert found == {"y": [-1.0]}


@pytest.mark.parametrize(
    ("call", "how", "kind", "can"),
    [
        ("a:b", "function", "npz", True), ("a:b", "function", "onnx", False), ("a:B", "class", "safetensors", False),
        (f"{BUILTIN}.torch:TorchPredictor", "class", "torch", True),
        (f"{BUILTIN}.torch:TorchPredictor", "class", "own", False),
        (f"{BUILTIN}.mxnet:MxnetPredictor", "class", "mxnet", True), ("own", "plugin", "npz", False),
    ],
)  # fmt: skip
def test_what_needs_the_weights_of_trims_is_not_loaded_alone(call: str, how: str, kind: str, can: bool) -> None:
    assert (alone.why_not(call, how, kind) == "") == can
    if not can:
        with pytest.raises(NotSupportedError):
            alone.make(call, how, "", {"path": "/x", "format": kind, "options": {}})
