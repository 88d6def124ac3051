"""What is read of files of other versions, files that are no such files, and folders that are not there."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from trims.trace.reader import read_counts, read_spans, read_traces, wait_for_trace

if TYPE_CHECKING:
    from pathlib import Path

HEADER = {"trims": 1, "pid": 7, "role": "tester", "unix_ns": 5_000, "monotonic_ns": 1_000, "boot": "b"}
ROW = ["0" * 31 + "1", "a" * 16, "", "one", 2, 1_000, 2_000, 7, {"k": 1}]


def write(folder: Path, *lines: Any, name: str = "1-7.spans") -> Path:
    path = folder / name
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return path


def test_a_span_is_read_with_its_process_and_its_time_on_the_wall(tmp_path: Path) -> None:
    write(tmp_path, HEADER, {"spans": [ROW]})
    (found,) = read_spans(tmp_path)
    assert (found.name, found.process.role, found.attributes, found.seconds) == ("one", "tester", {"k": 1}, 1e-6)
    assert found.process.wall_ns(found.start_ns) == 5_000
    assert read_traces(tmp_path, "another") == []


def test_a_folder_that_is_not_there_has_no_traces(tmp_path: Path) -> None:
    assert read_traces(tmp_path / "no") == []
    assert list(read_counts(tmp_path / "no")) == []


@pytest.mark.parametrize(
    "lines",
    [
        ("",), ("no json",), ({**HEADER, "trims": 2}, {"spans": [ROW]}), ({"trims": 1}, {"spans": [ROW]}), ([1], [2]),
        (HEADER, {"spans": [[1, 2]]}), (HEADER, {"spans": 7}), (HEADER, {"spans": [[*ROW[:4], "2", *ROW[5:]]]}),
        (HEADER, {"spans": [ROW], "of": "x"}), (HEADER, '{"spans": [["half'),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_left_out(tmp_path: Path, lines: tuple[Any, ...]) -> None:
    write(tmp_path, *lines)
    write(tmp_path, HEADER, {"spans": [ROW]}, name="2-8.spans")
    assert [each.name for each in read_spans(tmp_path)] == ["one"]


def test_a_file_that_may_not_be_read_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, HEADER, {"spans": [ROW]})
    os.symlink(tmp_path / "gone", tmp_path / "0-1.spans")
    assert [each.name for each in read_spans(tmp_path)] == ["one"]


def test_a_trace_is_waited_for_until_its_spans_have_ended_or_patience_has(tmp_path: Path) -> None:
    assert wait_for_trace(tmp_path, ROW[0], 0.0) is None
    open_row = [*ROW[:1], "b" * 16, *ROW[2:6], 0, *ROW[7:]]
    path = write(tmp_path, HEADER, {"spans": [ROW], "open": [open_row]})
    unfinished = wait_for_trace(tmp_path, ROW[0], 0.0)
    assert unfinished is not None
    assert [each.is_finished for each in unfinished.spans] == [True, False]
    later = threading.Timer(0.05, lambda: path.write_text(f"{json.dumps(HEADER)}\n{json.dumps({'spans': [ROW]})}\n"))
    later.start()
    found = wait_for_trace(tmp_path, ROW[0], 30.0)
    later.join(20)
    assert found is not None
    assert [each.is_finished for each in found.spans] == [True]
