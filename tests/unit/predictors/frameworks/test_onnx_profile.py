"""ONNX Runtime's profile: a recorded one of two runs, and others that are damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kineto_traces import RECORDED
from trims_predictors.frameworks.onnxruntime_profiler import profile_of
from trims_predictors.frameworks.profile_event import KERNEL, RUN

from trims.core.errors import PredictorError
from trims.trace.levels import Level

RUNS = (RECORDED / "onnxruntime.json").read_text()
START_NS = 5_000_000_000


def test_nodes_of_the_last_run_are_events_with_types_shapes_and_bytes() -> None:
    profile = profile_of(RUNS, START_NS)
    nodes = [each for each in json.loads(RUNS) if each["cat"] == "Node"]
    assert [(each.name, each.attributes["type"], each.attributes["index"]) for each in profile.events] == [
        ("fc", "MatMul", 0), ("act", "Relu", 1), ("Softmax_2", "Softmax", 2),
    ]  # fmt: skip
    first = profile.events[0]
    assert first.start_ns == START_NS + nodes[3]["ts"] * 1000, "the first three are of the run before"
    assert first.end_ns - first.start_ns == nodes[3]["dur"] * 1000
    assert first.attributes["input_shapes"] == [[2, 8]]
    assert (first.attributes["input_bytes"], first.attributes["output_bytes"]) == (64, 32)
    assert {(each.parent, each.is_joined) for each in profile.events} == {(RUN, True)}
    assert (profile.deepest, profile.accounted, profile.unread) == (Level.FRAMEWORK, 1.0, 0)


def damaged(change: Any) -> str:
    entries = json.loads(RUNS)
    change(entries)
    return json.dumps(entries)


@pytest.mark.parametrize("text", [RUNS[:-200], "", "{}", "[]", "[1, null]", RUNS.replace("model_run", "other")])
def test_a_profile_that_is_cut_off_or_has_no_run_is_refused(text: str) -> None:
    with pytest.raises(PredictorError):
        profile_of(text, START_NS)


def test_nodes_that_cannot_be_read_are_counted_and_the_others_shown() -> None:
    def change(entries: list[Any]) -> None:
        nodes = [each for each in entries if each["cat"] == "Node"]
        nodes[3].pop("dur")
        nodes[4]["dur"] = -5
        entries.insert(0, "garbage")

    profile = profile_of(damaged(change), START_NS)
    assert ([each.name for each in profile.events], profile.unread) == (["Softmax_2"], 3)


def test_a_node_without_its_index_is_not_known_by_an_id() -> None:
    def change(entries: list[Any]) -> None:
        [each for each in entries if each["cat"] == "Node"][3]["args"].pop("node_index")

    assert [each.is_joined for each in profile_of(damaged(change), START_NS).events] == [False, True, True]


def test_kernels_of_a_device_belong_to_the_node_that_they_name() -> None:
    def change(entries: list[Any]) -> None:
        kernel = {"cat": "Kernel", "pid": 1, "tid": 7, "ts": 7170, "dur": 4, "ph": "X", "name": "gemm"}
        entries.insert(-1, {**kernel, "args": {"parent_name": "fc_kernel_time", "stream": "7", "name": "x"}})
        entries.insert(-1, {**kernel, "args": {}})

    one, other = [each for each in profile_of(damaged(change), START_NS).events if each.kind == KERNEL]
    assert (one.parent, one.is_joined, one.level) == (1, True, Level.HARDWARE)
    assert (other.parent, other.is_joined) == (RUN, False)
