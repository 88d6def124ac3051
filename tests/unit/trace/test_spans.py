"""Spans as code records them: parents, levels, other processes, forks, and nothing where nothing is asked for."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from trims.trace import spans
from trims.trace.levels import Level
from trims.trace.reader import read_traces
from trims.trace.span import OFF
from trims.trace.spans import configure, continued, is_recording, span, stop, traceparent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.trace.reader import Trace

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    stop()


def recorded(folder: Path) -> list[Trace]:
    stop()
    return read_traces(folder)


def test_nothing_is_recorded_and_nothing_begins_until_it_is_asked_for(tmp_path: Path) -> None:
    assert span("a") is OFF
    with span("a") as one, continued(CALLER):
        one.set(nbytes=1)
        one.end()
        assert (one.context, traceparent(), is_recording()) == (None, None, False)
    assert read_traces(tmp_path) == []
    assert threading.active_count() == len(threading.enumerate())


def test_spans_within_a_block_are_parts_of_its_span(tmp_path: Path) -> None:
    configure(tmp_path, "tester", everything=True)
    with span("whole", Level.APPLICATION, model="m"):
        with span("part") as part:
            part.set(read_bytes=7)
        with span("other"):
            pass
    with span("next"):
        pass
    first, second = recorded(tmp_path)
    assert [(each.name, each.level) for each in first.spans] == [
        ("whole", Level.APPLICATION), ("part", Level.MODEL), ("other", Level.MODEL),
    ]  # fmt: skip
    assert [each.name for each in first.roots] == ["whole"]
    assert {each.parent_id for each in first.spans[1:]} == {first.spans[0].span_id}
    assert (first.spans[0].attributes, first.spans[1].attributes) == ({"model": "m"}, {"read_bytes": 7})
    assert all(each.start_ns <= each.end_ns and each.thread == threading.get_native_id() for each in first.spans)
    assert first.spans[0].process.role == "tester"
    assert [each.name for each in second.spans] == ["next"]


def test_only_traces_that_others_began_are_recorded_unless_all_are_asked_for(tmp_path: Path) -> None:
    configure(tmp_path, "tester")
    assert span("mine") is OFF
    with continued("nonsense"):
        assert span("mine") is OFF
    with continued(CALLER) as context, span("theirs") as theirs:
        assert is_recording()
        assert context is not None
        assert theirs.context is not None
        assert traceparent() == f"00-{context.trace_id}-{theirs.context.span_id}-01"
    (trace,) = recorded(tmp_path)
    assert trace.trace_id == CALLER[3:35]
    assert [each.parent_id for each in trace.spans] == [CALLER[36:52]]


def test_levels_deeper_than_asked_for_are_left_out(tmp_path: Path) -> None:
    configure(tmp_path, "tester", level=Level.MODEL, everything=True)
    assert span("layer", Level.FRAMEWORK) is OFF
    configure(tmp_path, "tester", level=Level.FRAMEWORK, everything=True)
    with span("layer", Level.FRAMEWORK):
        assert span("kernel", Level.HARDWARE) is OFF
    assert [each.name for trace in recorded(tmp_path) for each in trace.spans] == ["layer"]


def test_a_span_may_end_in_another_thread_late_twice_and_with_an_error(tmp_path: Path) -> None:
    configure(tmp_path, "tester", everything=True)
    with span("whole") as whole:
        late = span("late", parent=whole.context)
    thread = threading.Thread(target=late.end, args=(ValueError("no"),))
    thread.start()
    thread.join(20)
    late.end()
    with pytest.raises(KeyError), span("fails"):
        raise KeyError("x")
    traces = recorded(tmp_path)
    assert [(each.name, each.attributes) for trace in traces for each in trace.spans] == [
        ("whole", {}), ("late", {"error.type": "ValueError"}), ("fails", {"error.type": "KeyError"}),
    ]  # fmt: skip


def test_a_forked_child_writes_a_file_of_its_own_under_the_same_trace(tmp_path: Path) -> None:
    configure(tmp_path, "tester", everything=True)
    with span("parent"):
        spans.recorder().flush()  # type: ignore[union-attr]
        pid = os.fork()
        if not pid:
            with span("child"):
                pass
            stop()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    (trace,) = recorded(tmp_path)
    parent, child = trace.spans
    assert (parent.name, child.name, child.parent_id) == ("parent", "child", parent.span_id)
    assert (child.process.pid, parent.process.pid) == (pid, os.getpid())


def test_a_caller_asks_for_a_level_of_its_own_part_only(tmp_path: Path) -> None:
    configure(tmp_path, "tester")
    with continued(CALLER, Level.LIBRARY), span("asked") as asked:
        assert spans.deepest() == Level.LIBRARY
        with span("layer", Level.FRAMEWORK), span("kernel", Level.HARDWARE) as kernel:
            assert kernel is OFF
        with span("elsewhere", Level.LIBRARY, parent=asked.context):
            pass
    with continued(CALLER, Level.APPLICATION), span("stage") as stage:
        assert stage is OFF
    assert spans.deepest() == Level.MODEL
    with continued(CALLER), span("layer", Level.FRAMEWORK) as other:
        assert other is OFF
    (trace,) = recorded(tmp_path)
    assert [each.name for each in trace.spans] == ["asked", "layer", "elsewhere"]


def test_a_block_may_be_recorded_deeper_than_its_process(tmp_path: Path) -> None:
    configure(tmp_path, "tester", everything=True)
    with span("whole"), spans.down_to(Level.FRAMEWORK), span("layer", Level.FRAMEWORK):
        pass
    (trace,) = recorded(tmp_path)
    assert [(each.name, each.parent_id) for each in trace.spans][1] == ("layer", trace.spans[0].span_id)


def test_a_step_that_a_profiler_measured_is_a_span_like_others(tmp_path: Path) -> None:
    configure(tmp_path, "tester", everything=True)
    with span("whole") as whole:
        assert whole.context is not None
        attributes = {"name": "not its own", "kind": "layer"}
        made = spans.record("fc", Level.FRAMEWORK, whole.context, times_ns=(5, 9), thread=3, attributes=attributes)
    assert made is not None
    (trace,) = recorded(tmp_path)
    (fc,) = [each for each in trace.spans if each.name == "fc"]
    assert (fc.span_id, fc.parent_id, fc.start_ns, fc.end_ns, fc.thread) == (
        made.span_id,
        whole.context.span_id,
        5,
        9,
        3,
    )
    assert fc.attributes == attributes
    assert spans.record("fc", Level.FRAMEWORK, made, times_ns=(5, 9), thread=3, attributes={}) is None, "it is off"


@pytest.mark.parametrize("level", Level)
def test_a_callers_level_survives_the_way_to_the_endpoint(level: Level) -> None:
    is_asked, found = spans.asked_by(f"other=1, {spans.tracestate(level)}")
    assert is_asked
    assert found == (level if level > Level.MODEL else None)


@pytest.mark.parametrize("state", ["", "other=1", "trims=", "trims=deep", "trims=2", "xtrims=1"])
def test_a_state_that_names_no_level_asks_for_nothing(state: str) -> None:
    assert spans.asked_by(state) == (False, None)
