"""Conversions of ONNX models are proven: what cannot be used, or answers otherwise, is kept as published."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_files import CONVERTER, linear, save, value  # noqa: E402
from onnx_models import attention, convolution, write_image  # noqa: E402
from trims_client.frameworks import onnxruntime as shared  # noqa: E402
from trims_client.weights import Weights  # noqa: E402

from trims.formats.base import Artifact  # noqa: E402
from trims.formats.onnx import converter, proof  # noqa: E402
from trims.formats.onnx.proof import why_unusable  # noqa: E402
from trims.image.peek import why_of  # noqa: E402
from trims.image.program import Program  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
FEEDS = {"c": np.array(True), "x": np.array([1, 2], np.float32), "m": np.array(3)}


def attach(main: Path, **options: Any) -> Weights:
    plan = CONVERTER.plan(Artifact("onnx", CONVERTER.files(main, options), options))
    return Weights.map_file(write_image(plan, main.with_suffix(".image")))


def constant(name: str, numbers: list[float]) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(numbers, np.float32), name))


def branch(tag: str, numbers: list[float], depth: int) -> Any:
    """`x` and numbers of a `Constant`, in so many graphs of an `If`."""
    if depth:
        inner = [branch(tag + end, [*numbers[:1], len(tag)], depth - 1) for end in "ab"]
        nodes = [helper.make_node("If", ["c"], [f"o{tag}"], then_branch=inner[0], else_branch=inner[1])]
    else:
        nodes = [constant(f"k{tag}", numbers), helper.make_node("Add", ["x", f"k{tag}"], [f"o{tag}"])]
    return helper.make_graph(nodes, f"g{tag}", [], [value(f"o{tag}", FLOAT, [2])])


def branches_in_branches(folder: Path, depth: int) -> Path:
    inputs = [value("c", BOOL, []), value("x", FLOAT, [2])]
    return save(folder / "if.onnx", list(branch("t", [5, 6], depth).node), inputs, [value("ot", FLOAT, [2])], [])


def branches_in_a_loop(folder: Path, _: int) -> Path:
    ends = {"then_branch": branch("p", [3, 3], 0), "else_branch": branch("q", [4, 4], 0)}
    nodes = [
        helper.make_node("If", ["c"], ["z"], **ends),
        constant("k", [1, 1]),
        helper.make_node("Add", ["s", "k"], ["s1"]),
        helper.make_node("Add", ["s1", "z"], ["s2"]),
        helper.make_node("Identity", ["again"], ["again1"]),
    ]
    ins = [value("i", INT64, []), value("again", BOOL, []), value("s", FLOAT, [2])]
    body = helper.make_graph(nodes, "body", ins, [value("again1", BOOL, []), value("s2", FLOAT, [2])])
    inputs = [value("m", INT64, []), value("c", BOOL, []), value("x", FLOAT, [2])]
    loop = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    return save(folder / "loop.onnx", [loop], inputs, [value("y", FLOAT, [2])], [])


def equal_initializers_of_ir_3(folder: Path) -> Path:
    """Models of before ONNX 1.3 list initializers among their inputs, and the optimizer merges equal ones."""
    numbers = np.ones(400, np.float32)
    path = save(
        folder / "ir3.onnx",
        [helper.make_node("Mul", ["x", "a"], ["u"]), helper.make_node("Add", ["u", "b"], ["y"])],
        [value(name, FLOAT, [400]) for name in ("x", "a", "b")],
        [value("y", FLOAT, [400])],
        [numpy_helper.from_array(numbers, name) for name in ("a", "b")],
    )
    model = onnx.load(path)
    model.ir_version, model.opset_import[0].version = 3, 8
    onnx.save(model, path)
    return path


def answers_alone(main: Path, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(main, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()}))


@pytest.mark.parametrize(
    ("make", "depth"), [(branches_in_branches, 2), (branches_in_branches, 3), (branches_in_a_loop, 0)]
)
def test_constants_in_graphs_of_graphs_are_converted_and_served(make: Any, depth: int, tmp_path: Path) -> None:
    main = make(tmp_path, depth)
    with attach(main) as weights:
        session = shared.session(weights)
        assert session.program.kind == "onnxruntime"
        feeds = {each.name: FEEDS[each.name] for each in session.get_inputs()}
        np.testing.assert_array_equal(session.run(None, feeds), answers_alone(main, FEEDS))


def test_merged_initializers_of_an_old_model_are_no_inputs_afterwards(tmp_path: Path) -> None:
    main, x = equal_initializers_of_ir_3(tmp_path), np.arange(400, dtype=np.float32)
    with attach(main) as weights:
        session = shared.session(weights)
        assert session.program.kind == "onnxruntime"
        assert [each["name"] for each in session.program.attributes["inputs"]] == ["x"]
        np.testing.assert_array_equal(session.run(None, {"x": x}), answers_alone(main, {"x": x}))
    contents = CONVERTER.contents(Artifact("onnx", (main,)))
    assert contents.program is not None
    assert [each["name"] for each in contents.program.attributes["inputs"]] == ["x"]


@pytest.mark.parametrize("optimize", ["all", "none"])
def test_what_cannot_be_loaded_again_is_kept_as_published(
    optimize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(converter, "_drop_repeated", lambda _: None)  # as for what ONNX Runtime saves wrongly next
    main = branches_in_branches(tmp_path, 2)
    with attach(main, optimize=optimize) as weights:
        session = shared.session(weights)
        assert session.program.kind == "onnx-original"
        feeds = {each.name: FEEDS[each.name] for each in session.get_inputs()}
        np.testing.assert_array_equal(session.run(None, feeds), answers_alone(main, FEEDS))
    with main.with_suffix(".image").open("rb") as file:
        why = why_of(file.fileno(), main.with_suffix(".image").stat().st_size)
    assert why.startswith("kept as published, and each session optimizes it: ONNX Runtime")
    assert "does not load what it saved" in why
    assert why in caplog.text


@pytest.mark.parametrize("external", [None, "w.bin"])
def test_a_kept_model_is_fed_its_weights_from_the_image(
    external: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "why_unusable", lambda *_, **__: "it was asked for")
    main, feeds = linear(tmp_path, external=external), {"x": np.ones((2, 32), np.float32)}
    wanted = answers_alone(main, feeds)
    with attach(main) as weights:
        main.unlink()
        assert list(weights) == ["weight", "bias"]
        session = shared.session(weights)
        assert session.program.attributes["fed"] == ["weight"]
        np.testing.assert_array_equal(session.run(None, feeds), wanted)


def test_a_kept_model_whose_weights_cannot_be_taken_out_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "why_unusable", lambda *_, **__: "it was asked for")
    wide, feeds = 140_000, {"x": np.ones((2, 32), np.float32)}  # typed numbers, more than a program has in place
    weight = helper.make_tensor("w", FLOAT, [32, wide], np.arange(32.0 * wide))
    ends = [value("x", FLOAT, ["N", 32])], [value("y", FLOAT, ["N", wide])]
    main = save(tmp_path / "typed.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], *ends, [weight])
    wanted = answers_alone(main, feeds)
    with attach(main) as weights:
        assert list(weights) == []
        np.testing.assert_array_equal(shared.session(weights).run(None, feeds), wanted)


def session_of(main: Path) -> Any:
    return onnxruntime.InferenceSession(main, providers=["CPUExecutionProvider"])


def program_of(main: Path) -> Program:
    return Program("onnxruntime", {}, main.read_bytes())


@pytest.mark.parametrize("make", [convolution, attention])
def test_a_model_is_as_good_as_itself(make: Any, tmp_path: Path) -> None:
    main = make(tmp_path)
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain.add_session_config_entry("session.disable_prepacking", "1")
    plain.intra_op_num_threads = 1
    assert why_unusable(onnxruntime.InferenceSession(main, plain), program_of(main), {}, prepack=False) is None


def test_other_inputs_outputs_and_answers_are_named(tmp_path: Path) -> None:
    ends = [value("x", FLOAT, ["N"])], [value("y", FLOAT, ["N"])]
    main = save(tmp_path / "a.onnx", [helper.make_node("Exp", ["x"], ["y"])], *ends, [])
    original = session_of(main)

    def found(operator: str, given: list[Any], made: list[Any]) -> str | None:
        node = helper.make_node(operator, [given[0].name], [made[0].name])
        return why_unusable(original, program_of(save(tmp_path / "b.onnx", [node], given, made, [])), {}, prepack=False)

    assert found("Exp", *ends) is None
    assert (
        found("Exp", [value("z", FLOAT, ["N"])], ends[1])
        == "what ONNX Runtime saved has other inputs than the model: x, z"
    )
    assert (
        found("Exp", ends[0], [value("w", FLOAT, ["N"])])
        == "what ONNX Runtime saved has other outputs than the model: w, y"
    )
    assert found("Sin", *ends) == "what ONNX Runtime saved gives other answers than the model"
    assert found("Exp", [value("x", FLOAT, [4])], ends[1]) is not None


def test_a_model_that_draws_random_numbers_is_compared_by_its_ends(tmp_path: Path) -> None:
    outputs = [value("y", FLOAT, [3])]
    node = helper.make_node("RandomNormal", [], ["y"], shape=[3])
    main = save(tmp_path / "random.onnx", [node], [], outputs, [])
    assert why_unusable(session_of(main), program_of(main), {}, prepack=False) is None


@pytest.mark.parametrize("optimize", ["all", "basic", "none"])
def test_a_run_that_does_not_end_in_time_is_not_compared(
    optimize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "MOST_RUN_S", 0.1)
    body = helper.make_graph(
        [helper.make_node("Identity", [name], [f"{name}1"]) for name in ("again", "s")],
        "body",
        [value("i", INT64, []), value("again", BOOL, []), value("s", FLOAT, [2])],
        [value("again1", BOOL, []), value("s1", FLOAT, [2])],
    )
    many = numpy_helper.from_array(np.array(1 << 60), "many")
    loop = helper.make_node("Loop", ["many", "", "x"], ["y"], body=body)
    main = save(tmp_path / "long.onnx", [loop], [value("x", FLOAT, [2])], [value("y", FLOAT, [2])], [many])
    with attach(main, optimize=optimize) as weights:
        program = weights.program()
        assert program is not None
        assert program.kind == "onnxruntime"


def test_inputs_that_are_too_large_or_no_tensors_are_not_drawn(tmp_path: Path) -> None:
    wide = [value("x", FLOAT, [1 << 20, 1 << 20])]
    main = save(tmp_path / "a.onnx", [helper.make_node("Identity", ["x"], ["y"])], wide, [value("y", FLOAT, None)], [])
    assert proof._feeds(session_of(main), 1) is None
    listed = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    node = helper.make_node("SequenceLength", ["s"], ["n"])
    main = save(tmp_path / "b.onnx", [node], [listed], [value("n", INT64, [])], [])
    assert proof._feeds(session_of(main), 1) is None
