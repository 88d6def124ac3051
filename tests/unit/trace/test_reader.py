"""What is read of files of other versions, files that are no such files, and folders that are not there."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from trims.trace import reader
from trims.trace.reader import list_traces, read_counts, read_spans, read_traces, wait_for_trace

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


def row(number: int, name: str, begin_ns: int, end_ns: int, span: str = "a") -> list[Any]:
    return [f"{number:032x}", span * 16, "", name, 2, begin_ns, end_ns, 7, {}]


def written_at(path: Path, unix_ns: int) -> Path:
    os.utime(path, ns=(unix_ns, unix_ns))
    return path


def test_traces_are_listed_the_last_one_first_over_all_processes(tmp_path: Path) -> None:
    other = {**HEADER, "pid": 8, "monotonic_ns": 2_000}
    write(tmp_path, HEADER, {"spans": [row(1, "old", 1_000, 2_000), row(2, "root", 3_000, 9_000)]})
    write(
        tmp_path,
        other,
        {"spans": [row(2, "part", 4_000, 5_000)], "open": [row(2, "on", 9_500, 0, "b")]},
        name="2-8.spans",
    )
    found = list_traces(tmp_path)
    assert [each.as_json() for each in found] == [
        {
            "trace_id": f"{2:032x}", "name": "root", "began_unix_ns": 7_000, "seconds": 6.5e-6, "spans": 3,
            "processes": 2,
        },
        {
            "trace_id": f"{1:032x}", "name": "old", "began_unix_ns": 5_000, "seconds": 1e-6, "spans": 1,
            "processes": 1,
        },
    ]  # fmt: skip
    assert [each.name for each in list_traces(tmp_path, 1)] == ["root"]
    assert list_traces(tmp_path / "no", 1) == []


def test_a_short_list_reads_only_files_that_may_hold_one_of_its_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = {**HEADER, "unix_ns": 0, "monotonic_ns": 0}
    written_at(write(tmp_path, header, {"spans": [row(1, "old", 10, 20)]}, name="1-1.spans"), 100)
    written_at(write(tmp_path, header, {"spans": [row(2, "part", 310, 320)]}, name="2-2.spans"), 400)
    written_at(write(tmp_path, header, {"spans": [row(2, "root", 300, 350)]}, name="3-3.spans"), 500)
    opened: list[str] = []
    read = reader._batches

    def noted(path: Path, *given: Any) -> Any:
        opened.append(path.name)
        return read(path, *given)

    monkeypatch.setattr(reader, "_batches", noted)
    (found,) = list_traces(tmp_path, 1)
    assert (found.name, found.spans) == ("root", 2)
    assert opened == ["3-3.spans", "2-2.spans"]
    assert len(list_traces(tmp_path, 2)) == 2


def test_of_a_large_file_a_short_list_reads_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"spans": [row(number, f"t{number}", number * 10, number * 10 + 5)]} for number in range(1, 100)]
    write(tmp_path, HEADER, *lines)
    written_at(write(tmp_path, HEADER, {"spans": [row(500, "beyond", 1, 2)]}, name="0-1.spans"), 1)
    monkeypatch.setattr(reader, "_MOST_LISTED_BYTES", 1_000)
    found = [each.name for each in list_traces(tmp_path, 500)]
    assert found == [f"t{number}" for number in range(99, 99 - len(found), -1)]
    assert 5 < len(found) < 20
    assert len(list_traces(tmp_path)) == 100


def test_only_the_lines_of_the_wanted_trace_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, HEADER, {"spans": [row(1, "one", 1, 2)]}, {"spans": [row(17, "two", 1, 2), row(1, "three", 2, 3)]})
    read: list[bytes] = []
    loads = json.loads

    def noted(line: bytes) -> Any:
        read.append(line)
        return loads(line)

    monkeypatch.setattr(reader.json, "loads", noted)
    (found,) = read_traces(tmp_path, f"{17:032x}")
    assert [each.name for each in found.spans] == ["two"]
    assert len(read) == 2
    assert len(read_traces(tmp_path, "0" * 30)) == 2
