"""How `trims run` prints an answer; whole runs are in tests/e2e/test_run.py."""

from __future__ import annotations

import numpy as np
import pytest
from trims_predictors.cli.run import _as_json, _print, format_stages, format_start
from trims_predictors.cli.run_request import Ran
from trims_predictors.tensors import Tensor, from_array

from trims.cli.main import main
from trims.core.errors import CallerError

COLD = {
    "cold": True, "predictor": "forked", "place": "cpu", "resident": False, "queue_s": 0.5, "process_s": 0.1,
    "load_s": 0.25, "predict_s": 2.0, "run_s": 2.5,
}  # fmt: skip


def ran(*outputs: Tensor) -> Ran:
    return Ran("m", "1", COLD, outputs)


def test_cold_and_warm_are_told_with_their_stages() -> None:
    assert format_start(COLD) == "cold: a predictor was started (forked); weights at cpu, loaded for it"
    assert format_start({**COLD, "resident": True}).endswith("already there")
    assert format_start({"cold": False, "place": "gpu:0"}) == "warm: a predictor was running; weights at gpu:0"
    assert format_stages(COLD) == "queue 500.00 ms (process 100.00 ms, load 250.00 ms), predict 2.00 s, run 2.50 s"
    assert format_stages({"queue_s": 0.5}) == "queue 500.00 ms"
    assert format_stages({}) == ""


def test_small_tensors_are_printed_in_full_and_large_ones_by_their_ends(capsys: pytest.CaptureFixture[str]) -> None:
    _print(ran(from_array("small", np.arange(64.0)), from_array("large", np.arange(100_000))))
    told = capsys.readouterr().out
    assert "small: FP64 [64]\n" in told
    assert "63." in told
    assert "large: INT64 [100000]\n" in told
    assert "..." in told
    assert "from 0 to 99999, mean 49999.5" in told
    assert "50000" not in told


def test_texts_are_printed_as_text_and_other_bytes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    values = np.array([b"hello", b"\xff\xfe", b"x" * 1000, *([b"more"] * 70)], dtype=object)
    _print(ran(from_array("y", values)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["y: BYTES [73]", "  hello", "  2 bytes that are no text"]
    assert lines[3].endswith("... (1000 characters)")
    assert "  ..." in lines


def test_an_empty_tensor_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    _print(ran(from_array("y", np.zeros((0, 3)))))
    assert "y: FP64 [0, 3]\n  []\n" in capsys.readouterr().out


def test_the_whole_answer_is_json_unless_json_lacks_its_values() -> None:
    found = _as_json(ran(from_array("y", np.array([[1.0], [2.0]]))))
    assert found["outputs"] == [{"name": "y", "datatype": "FP64", "shape": [2, 1], "data": [1.0, 2.0]}]
    assert found["parameters"] == COLD
    with pytest.raises(CallerError, match="holds NaN or infinity, which JSON lacks; leave --json out to see it"):
        _as_json(ran(from_array("y", np.array([np.nan]))))


@pytest.mark.parametrize("deadline", ["0", "-1", "nan", "inf"])
def test_a_deadline_that_is_no_time_is_refused(deadline: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m", "[1]", "--deadline-s", deadline]) == 1
    assert f"--deadline-s is {deadline}; it must be more than 0 seconds" in capsys.readouterr().err
