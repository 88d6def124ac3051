"""ONNX Runtime's profiling around runs of a real session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_models  # noqa: F401 - which switches telemetry off
import pytest
from onnx import TensorProto, helper
from trims_predictors.api import Context
from trims_predictors.frameworks import onnxruntime as builtin
from trims_predictors.frameworks.onnxruntime_profiler import OnnxProfiler

from trims.core.errors import CallerError, PredictorError
from trims.trace.levels import Level

if TYPE_CHECKING:
    from pathlib import Path


def predictor(monkeypatch: pytest.MonkeyPatch) -> builtin.OnnxPredictor:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [values[0]], [values[1]])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()

    def session(weights: Any, session_options: Any, packed_options: Any) -> builtin.over_weights.SharedSession:
        del weights, packed_options
        return builtin.over_weights.SharedSession(data, session_options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(builtin.over_weights, "session", session)
    made = builtin.OnnxPredictor()
    weights: Any = None
    made.load(weights, Context("m", threads=1))
    return made


def temporary_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def test_a_profiled_run_has_a_session_of_its_own_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary_files(monkeypatch, tmp_path)
    made = predictor(monkeypatch)
    before, inputs = made._session, {"x": np.ones((2, 3), "f4")}
    profiler, began_ns = made.make_profiler(), time.monotonic_ns()
    profiler.start(Level.FRAMEWORK, inputs)
    assert made._session is not before
    assert list(tmp_path.iterdir()) == [], "nothing stays if this process is killed now"
    made.predict(inputs)
    profile = profiler.stop()
    assert made._session is before
    (node,) = profile.events
    assert (node.attributes["type"], node.attributes["input_shapes"]) == ("Neg", [[2, 3]])
    slack_ns = 50_000 + profile.clock_error_ns
    assert began_ns - slack_ns <= node.start_ns <= node.end_ns <= time.monotonic_ns() + slack_ns
    assert list(tmp_path.iterdir()) == []


def test_where_no_file_can_be_written_the_profiler_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary_files(monkeypatch, tmp_path / "missing")
    made = predictor(monkeypatch)
    before, profiler = made._session, made.make_profiler()
    with pytest.raises(OSError, match="missing"):
        profiler.start(Level.FRAMEWORK, {"x": np.ones((2, 3), "f4")})
    profiler.abandon()
    assert made._session is before


def test_a_run_that_fails_while_it_is_profiled_is_refused_as_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary_files(monkeypatch, tmp_path)
    made = predictor(monkeypatch)
    before, profiler = made._session, made.make_profiler()
    with pytest.raises(CallerError):
        profiler.start(Level.FRAMEWORK, {"x": np.ones((2, 4), "f4")})
    profiler.abandon()
    assert made._session is before
    with pytest.raises(CallerError):
        made.predict({"x": np.ones((2, 4), "f4")})
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_is_cut_off_on_the_disk_is_refused_and_the_session_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary_files(monkeypatch, tmp_path)
    made = predictor(monkeypatch)
    before, profiler = made._session, made.make_profiler()
    profiler.start(Level.FRAMEWORK, {"x": np.ones((2, 3), "f4")})
    monkeypatch.setattr(OnnxProfiler, "_text", lambda self, **_: '[{"cat": "Node", "na')
    with pytest.raises(PredictorError, match="cut off"):
        profiler.stop()
    assert made._session is before
    assert made.predict({"x": np.ones((2, 3), "f4")})["y"].shape == (2, 3)


class Inside:
    """A session, or the one over packed weights inside of it; both write profiles."""

    def __init__(self, prefix: str, name: str) -> None:
        self.inner: Inside | None = None
        self.path = f"{prefix}{name}_2026.json"
        self._file = open(self.path, "w", buffering=1)  # noqa: SIM115 - until the profiling ends

    def get_profiling_start_time_ns(self) -> int:
        return 0

    def end_profiling(self) -> str:
        node = {"cat": "Node", "name": f"{self.path[-11]}_kernel_time", "ts": 1, "dur": 1, "args": {"op_name": "Neg"}}
        run = {"cat": "Session", "name": "model_run"}
        self._file.write(f"[{node}, {run}]".replace("'", '"'))
        self._file.close()
        return self.path


class Packed:
    """A predictor whose sessions pack their weights."""

    def profiling_session(self, prefix: str) -> Inside:
        made = Inside(prefix, "0")
        made.inner = Inside(prefix, "1")
        return made

    def exchange_session(self, session: Any) -> Any:
        self.session = session
        return "before"

    def predict(self, inputs: Any) -> Any:
        return inputs


@pytest.mark.parametrize("is_packed", [True, False])
def test_the_profile_is_that_of_the_session_that_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_packed: bool
) -> None:
    temporary_files(monkeypatch, tmp_path)
    profiler = OnnxProfiler(Packed(), lambda session: session.inner if is_packed else session)
    profiler.start(Level.FRAMEWORK, {})
    outer = profiler._session
    (node,) = profiler.stop().events
    assert node.name == ("1" if is_packed else "0")
    for each in (outer, outer.inner):
        each._file.close()
