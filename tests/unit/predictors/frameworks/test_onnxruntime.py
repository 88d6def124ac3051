"""The predictor of ONNX models: real graphs, the protocol's types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper
from trims_predictors.api import Context
from trims_predictors.frameworks import onnxruntime as builtin

from trims.core.errors import CallerError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import onnxruntime


def predictor(
    monkeypatch: pytest.MonkeyPatch, operator: str, kind: int, shape: Sequence[int | str]
) -> builtin.OnnxPredictor:
    value = [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", [value[0]], [value[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return over(monkeypatch, model.SerializeToString())


def over(monkeypatch: pytest.MonkeyPatch, data: bytes) -> builtin.OnnxPredictor:
    """The predictor of a model."""

    def session(weights: Any, session_options: Any, packed_options: Any) -> onnxruntime.InferenceSession:
        assert session_options.intra_op_num_threads == packed_options.intra_op_num_threads == 1
        return builtin.over_weights.SharedSession(data, session_options, providers=["CPUExecutionProvider"])

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


def a_classifier(monkeypatch: pytest.MonkeyPatch, folder: Path, *, zip_map: bool = True) -> builtin.OnnxPredictor:
    return over(monkeypatch, onnx_models.classifier(folder / "c.onnx", zip_map=zip_map).read_bytes())


X = np.array([[2, 1], [0, 1]], "f4")


def test_a_classifier_of_scikit_learn_gives_labels_and_its_maps_are_left_out(
    monkeypatch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = a_classifier(monkeypatch, folder)
    assert [(each.name, each.dtype) for each in made.outputs()] == [("label", "INT64")]
    assert "'output_probability' of the type seq(map(int64,tensor(float)))" in caplog.text
    found = made.predict({"X": X})
    assert {name: each.tolist() for name, each in found.items()} == {"label": [3, 7]}


def test_an_output_without_tensors_that_is_asked_for_by_name_is_not_supported(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    made = a_classifier(monkeypatch, folder)
    with pytest.raises(NotSupportedError, match="'output_probability' of the type seq"):
        made.predict_only({"X": X}, ["label", "output_probability"])
    with pytest.raises(CallerError, match="no output 'other'; it has label"):
        made.predict_only({"X": X}, ["other"])


def test_only_outputs_that_are_asked_for_are_fetched_from_the_session(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    made = a_classifier(monkeypatch, folder, zip_map=False)
    session, fetched = made._session, []

    def run(names: list[str], inputs: Any) -> Any:
        fetched.append(names)
        return session.run(names, inputs)

    monkeypatch.setattr(made, "_session", SimpleNamespace(run=run))
    assert made.predict_only({"X": X}, ["scores"])["scores"].argmax(1).tolist() == [0, 1]
    assert made.predict({"X": X}).keys() == {"label", "scores"}
    assert fetched == [["scores"], ["label", "scores"]]


SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
OPTIONAL = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))


@pytest.mark.parametrize(
    ("operator", "given", "made", "named"),
    [
        ("SequenceConstruct", onnx_models.value("x", TensorProto.FLOAT, ["n"]), SEQUENCE, "y"),
        ("Optional", onnx_models.value("x", TensorProto.FLOAT, ["n"]), OPTIONAL, "y"),
        ("SequenceLength", helper.make_value_info("x", SEQUENCE), None, "x"),
        ("OptionalGetElement", helper.make_value_info("x", OPTIONAL), None, "x"),
    ],
)
def test_a_graph_that_no_request_can_feed_or_read_is_refused_as_it_loads(
    monkeypatch: pytest.MonkeyPatch, operator: str, given: Any, made: Any, named: str
) -> None:
    plain = TensorProto.INT64 if operator == "SequenceLength" else TensorProto.FLOAT
    shape = [] if operator == "SequenceLength" else ["n"]
    output = onnx_models.value("y", plain, shape) if made is None else helper.make_value_info("y", made)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", [given], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(NotSupportedError, match=f"{named!r} of the type"):
        over(monkeypatch, model.SerializeToString())
