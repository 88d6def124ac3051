"""Layers of runs: their own times, by type, and what of the operators' time is joined by ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from recorded import span, trace
from trims_bench.evaluation.leveled import Layers, layers_of

from trims.trace.levels import Level

if TYPE_CHECKING:
    from trims.trace.reader import Record, Trace

MS = 1_000_000


def part(name: str, begin: int, end: int, parent: str, kind: str, **attributes: Any) -> Record:
    return span(name, begin * MS, end * MS, parent, level=Level.FRAMEWORK, kind=kind, **attributes)


def a_run(*more: Record, end: int = 100) -> Trace:
    """A run of a net with two layers, one of which has an operator with a kernel, and an operator beside them."""
    return trace(
        span("predict", 0, end * MS),
        part("net", 0, 80, "predict", "layer", type="Net"),
        part("fc", 10, 40, "net", "layer", type="Linear", input_shapes=[[2, 8]]),
        part("addmm", 12, 30, "fc", "operator", type="aten::addmm"),
        part("inner", 13, 20, "addmm", "operator"),
        part("launch", 14, 15, "inner", "call"),
        part("sgemm", 50, 57, "launch", "kernel"),
        part("out", 50, 70, "net", "layer", type="Linear"),
        part("softmax", 85, 95, "predict", "operator", type="aten::softmax"),
        *more,
    )


def test_own_times_of_layers_add_up_to_what_ran_and_operators_beside_them_are_rows() -> None:
    found = layers_of([a_run()])
    rows = [(each.name, each.type, round(each.seconds * 1e3), round(each.share, 3)) for each in found.layers]
    assert rows == [
        ("net", "Net", 30, 0.3), ("fc", "Linear", 30, 0.3), ("out", "Linear", 20, 0.2),
        ("softmax", "aten::softmax", 10, 0.1),
    ]  # fmt: skip
    assert [each.device_s for each in found.layers] == [0, 0.007, 0, 0]
    assert found.layers[1].input_shapes == ((2, 8),)
    kinds = [(each.type, each.count, round(each.seconds * 1e3)) for each in found.kinds()]
    assert kinds == [("Linear", 2, 50), ("Net", 1, 30), ("aten::softmax", 1, 10)]
    assert sum(each.seconds for each in found.layers) <= found.run_s


def test_what_no_id_joins_is_not_accounted_for() -> None:
    assert layers_of([a_run()]).accounted == 1.0
    stray = part("stray", 60, 65, "predict", "operator", joined=False)
    found = layers_of([a_run(stray)])
    # addmm 18, softmax 10 and sgemm 7 of these and 5 more; `inner` is inside of addmm.
    assert (found.accounted, found.operators) == (pytest.approx(35 / 40), 4)


def test_times_are_of_the_first_runs_and_kernels_of_the_deeper_ones() -> None:
    shallow = [each for each in a_run().spans if each.attributes.get("kind") not in ("call", "kernel")]
    deep = a_run(part("more", 0, 1, "launch", "kernel"), end=900)
    found = layers_of([trace(*shallow)], [deep])
    assert found.run_s == pytest.approx(0.1)
    assert {each.name: each.device_s for each in found.layers}["fc"] == pytest.approx(0.008)


def test_layers_that_run_twice_are_two_rows_and_runs_are_medians() -> None:
    twice = part("again", 70, 75, "net", "layer", type="Linear")
    twice.name = "fc"
    found = layers_of([a_run(), a_run(end=300), a_run(twice, end=110)])
    assert [each.name for each in found.layers].count("fc") == 2
    assert found.run_s == pytest.approx(0.110)


def test_traces_without_a_run_have_no_layers_and_a_table_comes_back_from_json() -> None:
    assert layers_of([trace(span("open", 0, 5))]) == Layers(0.0)
    assert Layers(0.0).kinds() == []
    found = layers_of([a_run()])
    assert Layers.from_json(json.loads(json.dumps(found.as_json()))) == found
