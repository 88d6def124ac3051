"""Inputs and outputs of ONNX models are read from the graph, as the Open Inference Protocol names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_models
import pytest
from onnx_models import TensorProto, helper, numpy_helper, value

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.formats.onnx import signature
from trims.formats.onnx.signature import read_signature
from trims.manifests.serving import ANY_RANK, Signature, TensorType

if TYPE_CHECKING:
    from pathlib import Path


def save(path: Path, inputs: list[Any], outputs: list[Any], weights: list[Any] | None = None, **more: Any) -> Path:
    graph = helper.make_graph([], "g", inputs, outputs, weights or [], **more)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_names_types_and_lengths_are_those_of_the_graph(tmp_path: Path) -> None:
    kinds = {"FLOAT": "FP32", "INT64": "INT64", "STRING": "BYTES", "BOOL": "BOOL", "FLOAT16": "FP16"}
    inputs = [value(kind.lower(), getattr(TensorProto, kind), ["batch", 3, None]) for kind in kinds]
    found = read_signature(save(tmp_path / "m.onnx", inputs, [value("y", TensorProto.DOUBLE, [])]))
    taken = tuple(TensorType(kind.lower(), dtype, (-1, 3, -1)) for kind, dtype in kinds.items())
    assert found == Signature(taken, (TensorType("y", "FP64", ()),))


def test_maps_are_no_outputs_and_a_sequence_as_input_leaves_the_signature_empty(tmp_path: Path) -> None:
    found = read_signature(onnx_models.classifier(tmp_path / "c.onnx"))
    assert found == Signature((TensorType("X", "FP32", (-1, 2)),), (TensorType("label", "INT64", (-1,)),))
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    inputs = [helper.make_value_info("s", kind), value("x", TensorProto.FLOAT, ["n"])]
    assert read_signature(save(tmp_path / "s.onnx", inputs, [])) == Signature()


def test_an_input_without_a_shape_may_have_any(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)], [])
    (found,) = read_signature(path).inputs
    assert found == TensorType("x", "FP32", (ANY_RANK,))
    assert found.admits((2, 3))
    assert found.admits(())


@pytest.mark.parametrize("sparse", [False, True])
def test_weights_that_an_old_model_lists_among_its_inputs_are_none(tmp_path: Path, sparse: bool) -> None:
    weight = numpy_helper.from_array(np.ones(3, "f4"), "w")
    more: dict[str, Any] = {"weights": [weight]}
    if sparse:
        places = numpy_helper.from_array(np.arange(3), "places")
        more = {"sparse_initializer": [helper.make_sparse_tensor(weight, places, [9])]}
    path = save(tmp_path / "m.onnx", [value(name, TensorProto.FLOAT, [3]) for name in "wx"], [], **more)
    assert [each.name for each in read_signature(path).inputs] == ["x"]


def test_a_graph_of_too_many_parts_is_left_to_its_load_and_no_graph_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "m.onnx", [value(f"x{number}", TensorProto.FLOAT, [3]) for number in range(1025)], [])
    with pytest.raises(NotInPlaceError, match="too many inputs"):
        read_signature(path)
    monkeypatch.setattr(signature, "_MAX_FIELDS", 100)
    with pytest.raises(NotInPlaceError, match="more than 100 parts"):
        read_signature(path)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(ArtifactError):
        read_signature(path)
