"""The predictor of ONNX models: real graphs, the protocol's types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from trims_predictors.builtin import onnxruntime as builtin
from trims_predictors.predictor import Context

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Sequence


def predictor(
    monkeypatch: pytest.MonkeyPatch, operator: str, kind: int, shape: Sequence[int | str]
) -> builtin.OnnxPredictor:
    value = [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", [value[0]], [value[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    data = model.SerializeToString()

    def session(weights: Any, session_options: Any, packed_options: Any) -> onnxruntime.InferenceSession:
        assert session_options.intra_op_num_threads == packed_options.intra_op_num_threads == 1
        return onnxruntime.InferenceSession(data, session_options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(builtin.over_weights, "session", session)
    made = builtin.OnnxPredictor()
    weights: Any = None
    made.load(weights, Context("m", threads=1))
    return made


def test_the_graph_says_what_it_takes_and_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    made = predictor(monkeypatch, "Neg", TensorProto.FLOAT, ["n", 3])
    (taken,), (given,) = made.inputs(), made.outputs()
    assert (taken.name, taken.dtype, taken.shape) == ("x", "FP32", (-1, 3))
    assert (given.name, given.dtype, given.shape) == ("y", "FP32", (-1, 3))
    assert made.predict({"x": np.ones((2, 3), "f4")})["y"].tolist() == [[-1] * 3] * 2
    made.unload()


def test_a_rehearsal_runs_and_leaves_no_packing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made = predictor(monkeypatch, "Neg", TensorProto.FLOAT, ["n", 3])
    done: list[str] = []

    def pack() -> str:
        done.append("pack")
        return "packed"

    monkeypatch.setattr(made, "predict", lambda inputs: done.append("run"))
    monkeypatch.setattr(made, "_session", SimpleNamespace(pack=pack))
    made.rehearse({"x": np.zeros((2, 3), "f4")})
    assert done == ["run", "pack", "run"], "the packed session takes memory of its own"


def test_text_goes_in_and_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = predictor(monkeypatch, "Identity", TensorProto.STRING, ["n"])
    assert made.inputs()[0].dtype == "BYTES"
    found = made.predict({"x": np.array([b"ab", "ü".encode()], dtype=object)})["y"]
    assert found.tolist() == ["ab", "ü"]


@pytest.mark.parametrize("inputs", [{"x": np.ones(3, "f4")}, {"x": np.ones((1, 3))}, {"z": np.ones((1, 3), "f4")}, {}])
def test_what_the_graph_does_not_take_is_the_client_s_fault(
    monkeypatch: pytest.MonkeyPatch, inputs: dict[str, Any]
) -> None:
    with pytest.raises(CallerError, match="ONNX Runtime refuses the request"):
        predictor(monkeypatch, "Neg", TensorProto.FLOAT, ["n", 3]).predict(inputs)
