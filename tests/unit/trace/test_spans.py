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
