"""Kineto's traces as layers, operators, calls and kernels, joined by ids: a recorded one, and one with a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kineto_traces import RECORDED, activities_in
from trims_predictors.frameworks.profile_event import CALL, KERNEL, LAYER, OPERATOR, RUN, within
from trims_predictors.frameworks.torch_profiler import Activity, Layer, profile_of

from trims.trace.levels import Level

if TYPE_CHECKING:
    from trims_predictors.frameworks.profile_event import Event, Profile

NET = {
    number: Layer(name, kind)
    for number, (name, kind) in enumerate(
        [("ConvNet", "ConvNet"), ("body", "Sequential"), ("body.0", "Conv2d"), ("body.1", "BatchNorm2d"),
         ("body.2", "ReLU"), ("head", "Linear")], 1,
    )
}  # fmt: skip


def by_name(profile: Profile) -> dict[str, Event]:
    return {each.name: each for each in profile.events}


def parent_of(profile: Profile, event: Event) -> str:
    names = {each.id: each.name for each in profile.events}
    return names[event.parent] if event.parent != RUN else "the run"


def test_a_recorded_run_is_a_tree_of_modules_and_operators() -> None:
    profile = profile_of(activities_in(RECORDED / "kineto_cpu.json"), NET, 0)
    found = by_name(profile)
    assert {each.name: parent_of(profile, each) for each in profile.events if each.kind == LAYER} == {
        "ConvNet": "the run", "body": "ConvNet", "body.0": "body", "body.1": "body", "body.2": "body",
        "head": "ConvNet",
    }  # fmt: skip
    assert parent_of(profile, found["aten::conv2d"]) == "body.0"
    assert parent_of(profile, found["aten::mean"]) == "ConvNet"
    assert (found["aten::conv2d"].level, found["aten::convolution"].level) == (Level.FRAMEWORK, Level.LIBRARY)
    assert found["aten::conv2d"].attributes["input_shapes"] == [[1, 3, 8, 8], [4, 3, 3, 3], [4]]
    assert found["aten::relu"].attributes["input_bytes"] == 4 * 4 * 6 * 6
    assert profile.accounted == 1.0
    assert (profile.deepest, profile.why_not_deeper) == (Level.LIBRARY, "torch uses no GPU here")


def test_times_are_moved_from_kinetos_clock_to_that_of_spans() -> None:
    one, other = (by_name(profile_of(activities_in(RECORDED / "kineto_cpu.json"), NET, ns)) for ns in (0, -1000))
    for name, event in one.items():
        assert (event.start_ns - other[name].start_ns, event.end_ns - other[name].end_ns) == (1000, 1000)


def test_kernels_belong_to_the_operator_that_launched_them_though_ids_look_alike() -> None:
    profile = profile_of(activities_in(RECORDED / "kineto_cuda.json"), {1: Layer("fc", "Linear")}, 0, has_device=True)
    found = by_name(profile)
    names = {each.id: each for each in profile.events}

    def operator_of(kernel: str) -> str:
        call = names[found[kernel].parent]
        assert call.kind == CALL
        return names[call.parent].name

    # Correlation 5 is a launch in the operator 4, and correlation 4 one in the operator 5.
    assert operator_of("sgemm_32x32_nn") == "aten::addmm"
    assert operator_of("vectorized_elementwise_kernel") == "aten::relu"
    assert operator_of("Memcpy DtoH (Device -> Pageable)") == "aten::to"
    assert found["Memcpy DtoH (Device -> Pageable)"].attributes["copied_bytes"] == 32
    assert (found["sgemm_32x32_nn"].kind, found["sgemm_32x32_nn"].level) == (KERNEL, Level.HARDWARE)
    assert parent_of(profile, found["aten::to"]) == "the run"
    assert profile.deepest == Level.HARDWARE


def test_a_kernel_that_no_operator_launched_is_not_joined_by_its_time() -> None:
    profile = profile_of(activities_in(RECORDED / "kineto_cuda.json"), {1: Layer("fc", "Linear")}, 0, has_device=True)
    other = by_name(profile)["of_somebody_else"]
    assert (other.parent, other.is_joined) == (RUN, False)
    # Operators of 50, 20 and 40 us, kernels of 60, 20, 10; and 10 us of somebody else.
    assert profile.accounted == pytest.approx(200 / 210)


def test_a_kernel_whose_call_is_missing_belongs_to_the_operator_that_it_names() -> None:
    whole = activities_in(RECORDED / "kineto_cuda.json")
    profile = profile_of([each for each in whole if each.category != "cuda_runtime"], {}, 0, has_device=True)
    kernel = by_name(profile)["sgemm_32x32_nn"]
    assert (parent_of(profile, kernel), kernel.is_joined) == ("aten::addmm", True)


def test_operators_outside_of_the_run_are_not_joined_to_it() -> None:
    stray = Activity("cpu_op", "aten::add", 10, 20, external=7)
    profile = profile_of([stray], {}, 0)
    (event,) = profile.events
    assert (event.kind, event.parent, event.is_joined, profile.accounted) == (OPERATOR, RUN, False, 0.0)


def test_what_ends_before_it_begins_is_counted_and_left_out() -> None:
    whole = activities_in(RECORDED / "kineto_cuda.json")
    broken = [replace(each, end_ns=0) if each.name in ("aten::relu", "sgemm_32x32_nn") else each for each in whole]
    profile = profile_of(broken, {}, 0, has_device=True)
    assert profile.unread == 2
    assert "aten::relu" not in by_name(profile)


def test_parents_that_go_in_a_circle_end_nothing() -> None:
    circle = [Activity("cpu_op", f"op{n}", 0, 1, external=n, parent=3 - n) for n in (1, 2)]
    profile = profile_of(circle, {}, 0)
    assert within(profile.events, Level.HARDWARE) == ([], 2)
