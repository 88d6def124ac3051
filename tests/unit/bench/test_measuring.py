"""Turns, figures, checkpoints and memory maps: what benchmarks count with."""

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
from trims_bench.evaluation.stack import stack
from trims_bench.measuring import Bar, Comparison, Figure, Samples, faster, measure, middle, more, ratio, share
from trims_bench.repository import ClientsMissingError, MxnetMissingError, clients_python, mxnet_python, packages_path
from trims_bench.scenarios.client import opens

from trims.trace import spans


def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians() -> None:
    ours, theirs = Samples("a", [1, 10, 100]), Samples("b", [4, 20, 100])
    assert faster("x", ours, theirs, None).value == 2.0
    assert share("x", ours, theirs, None).value == 0.5


def test_what_is_more_is_the_median_of_differences_of_pairs_in_milliseconds() -> None:
    ours, theirs = Samples("a", [5_000_000, 3_000_000, 9_000_000]), Samples("b", [4_000_000, 1_000_000, 1_000_000])
    assert more("x", ours, theirs, None).value == 2.0


def test_a_middle_and_a_ratio_are_of_medians() -> None:
    ours, theirs = Samples("a", [1_000_000, 3_000_000]), Samples("b", [4_000_000])
    assert middle("x", ours, Bar("<=", 2), theirs).value == 2.0
    assert ratio("x", theirs, ours, None).value == 2.0


def test_few_samples_have_their_range_and_many_an_interval_around_the_median() -> None:
    assert Samples("a", [3, 1, 2]).interval == (1, 3)
    low, high = Samples("a", list(range(1, 102))).interval
    assert 1 < low < 51 < high < 101


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

    found = measure({name: (lambda name=name: way(name)) for name in "ab"}, 2, warm_up=1)  # type: ignore[misc]
    assert "".join(order) == "ababab"
    assert {name: len(taken) for name, taken in found.items()} == {"a": 2, "b": 2}


def test_in_bursts_a_way_is_called_often_in_a_row_before_the_next_one() -> None:
    called: list[str] = []
    ways = {"a": lambda: called.append("a"), "b": lambda: called.append("b")}
    found = measure(ways, 5, burst=3, warm_up=1)
    assert "".join(called) == ("aaaa" + "bbbb") * 2
    assert {name: len(times) for name, times in found.items()} == {"a": 6, "b": 6}


def test_the_last_result_of_each_burst_is_kept() -> None:
    kept: list[tuple[str, int]] = []
    numbers = iter(range(100))
    measure({"a": lambda: next(numbers)}, 4, burst=2, warm_up=1, keep=lambda *each: kept.append(each))
    assert kept == [("a", 2), ("a", 5)]


def test_timed_calls_are_spans_where_traces_are_on() -> None:
    collector = spans.collect()
    try:
        with spans.continued(f"00-{'1' * 32}-{'2' * 16}-01"):
            measure({"side": lambda: None}, 2, warm_up=1)
        rows = collector.take()
    finally:
        spans.stop()
    assert sum("side" in row for row in rows) == 3


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
    assert call(packages_path, {}) == packages_path()


def test_a_child_that_fails_says_what_failed() -> None:
    with pytest.raises(ChildError, match="no daemon answers at /nowhere"):
        call(opens, {"runtime_dir": "/nowhere", "models": [], "count": 1})


def test_what_a_machine_is_says_nothing_about_whose_it_is() -> None:
    told = json.dumps(stack())
    assert os.uname().nodename not in told
    assert os.fspath(Path.home()) not in told
    assert stack()["libraries"]["numpy"] == np.__version__


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
    with pytest.raises(ClientsMissingError, match="cannot import tritonclient"):
        clients_python()
