"""Kineto around runs of real modules."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn.modules import module as torch_module
from trims_predictors.frameworks.profile_event import LAYER, OPERATOR, RUN
from trims_predictors.frameworks.torch_profiler import TorchProfiler, _activities

from trims.core.errors import PredictorError
from trims.testing.torch_modules import conv_net
from trims.trace.levels import Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_predictors.frameworks.profile_event import Profile

IMAGE = torch.zeros(1, 3, 8, 8)


def profile_of(run: Callable[[], object], level: Level = Level.FRAMEWORK) -> Profile:
    profiler = TorchProfiler()
    profiler.start(level, {})
    try:
        with torch.inference_mode():
            run()
    finally:
        found = profiler.stop()
    return found


def hooks() -> int:
    return len(torch_module._global_forward_hooks) + len(torch_module._global_forward_pre_hooks)


def test_modules_are_layers_with_their_paths_and_times_of_the_monotonic_clock() -> None:
    net, before_ns = conv_net().eval(), time.monotonic_ns()
    profile = profile_of(lambda: net(IMAGE))
    layers = [each for each in profile.events if each.kind == LAYER]
    assert [each.name for each in layers] == ["ConvNet", "body", "body.0", "body.1", "body.2", "head"]
    slack_ns = 50_000 + profile.clock_error_ns
    assert all(
        before_ns - slack_ns <= each.start_ns <= each.end_ns <= time.monotonic_ns() + slack_ns for each in layers
    )
    assert {each.thread for each in layers} == {threading.get_native_id()}
    assert profile.accounted == 1.0
    assert hooks() == 0


def test_a_module_that_runs_twice_is_two_layers_and_one_that_fails_ends_its_range() -> None:
    linear = torch.nn.Linear(2, 2).eval()
    both = torch.nn.Sequential(linear, linear)
    twice = profile_of(lambda: both(torch.zeros(1, 2)))
    assert [each.name for each in twice.events if each.kind == LAYER].count("0") == 2

    def fail() -> None:
        with pytest.raises(RuntimeError):
            both(torch.zeros(1, 3))
        torch.ones(2).add(1)

    profile = profile_of(fail)
    (added,) = [each for each in profile.events if each.name == "aten::add"]
    assert (added.parent, added.is_joined) == (RUN, True), "it is no part of the module that failed before"
    assert hooks() == 0


def test_what_a_models_own_threads_run_disturbs_no_layer() -> None:
    net = conv_net().eval()

    def run() -> None:
        thread = threading.Thread(target=net, args=(IMAGE,))
        thread.start()
        net(IMAGE)
        thread.join(60)

    profile = profile_of(run)
    assert len([each for each in profile.events if each.kind == LAYER]) == 6


def test_operators_outside_of_modules_are_parts_of_the_run() -> None:
    profile = profile_of(lambda: torch.ones(2) @ torch.ones(2), Level.LIBRARY)
    outer = {each.name for each in profile.events if each.kind == OPERATOR and each.parent == RUN}
    assert "aten::matmul" in outer
    assert not [each for each in profile.events if each.kind == LAYER]


def test_a_profile_of_the_models_own_code_goes_on_and_ours_does_not_start() -> None:
    net = conv_net().eval()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        profiler = TorchProfiler()
        with pytest.raises(PredictorError):
            profiler.start(Level.FRAMEWORK, {})
        profiler.abandon()
        net(IMAGE)
    assert "aten::conv2d" in {each.name for each in theirs.events()}
    assert hooks() == 0
    assert profile_of(lambda: net(IMAGE)).events


class Seen:
    """An event of Kineto's memory, as torch hands it out where there is a GPU."""

    def __init__(self, category: str, name: str, own: int, linked: int = 0, **more: int) -> None:
        values = {
            "activity_type": category, "name": name, "correlation_id": own, "linked_correlation_id": linked,
            "start_ns": 10, "duration_ns": 5, "device_resource_id": 7, "device_index": -1, "nbytes": 0, "shapes": [],
            "dtypes": [], **more,
        }  # fmt: skip
        for key, value in values.items():
            setattr(self, key, lambda value=value: value)


def test_ids_of_calls_and_kernels_are_taken_as_kineto_means_them() -> None:
    inner = SimpleNamespace(tag="_EventType.TorchOp", correlation_id=4, children=[])
    between = SimpleNamespace(tag="_EventType.Allocation", correlation_id=0, children=[inner])
    outer = SimpleNamespace(tag="_EventType.TorchOp", correlation_id=3, children=[between])
    seen = [
        Seen("cpu_op", "aten::linear", 3), Seen("cpu_op", "aten::addmm", 4),
        Seen("cuda_runtime", "cudaLaunchKernel", 5, 4), Seen("kernel", "sgemm", 5, 4, device_index=1),
        Seen("gpu_memcpy", "Memcpy DtoH", 6, 3, device_index=0, nbytes=32),
    ]  # fmt: skip
    results = SimpleNamespace(events=lambda: seen, experimental_event_tree=lambda: [outer])
    found = [
        (each.name, each.external, each.correlation, each.parent, each.device, each.nbytes)
        for each in _activities(results)
    ]
    assert found == [
        ("aten::linear", 3, 0, 0, 0, 0), ("aten::addmm", 4, 0, 3, 0, 0), ("cudaLaunchKernel", 4, 5, 0, 0, 0),
        ("sgemm", 4, 5, 0, 1, 0), ("Memcpy DtoH", 3, 6, 0, 0, 32),
    ]  # fmt: skip
