"""A process's recorder on bad days: a disk that is full, read-only or stalls; a process that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until

from trims.trace import recorder as module
from trims.trace.context import SpanContext
from trims.trace.levels import Level
from trims.trace.reader import read_counts, read_spans, read_traces
from trims.trace.recorder import Collector, Recorder
from trims.trace.span import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    made = []

    def begin(folder: Path = tmp_path / "trace") -> Recorder:
        made.append(Recorder(folder, "tester"))
        return made[-1]

    yield begin
    for each in made:
        each.close()
        if each._thread is not None:
            each._thread.join(20)


def one(recorder: Recorder, name: str = "one") -> Span:
    return Span(recorder, name, Level.MODEL, None, {})


def test_no_folder_and_no_thread_are_made_before_there_is_a_span(
    start: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder = start()
    assert recorder.flush()
    assert recorder._thread is None
    assert not (tmp_path / "trace").exists()
    one(recorder).end()
    assert recorder.flush(20)
    (file,) = (tmp_path / "trace").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_counters_are_read_back_in_order(start: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = start()
    for value in (1, 2.5):
        recorder.count("leases", value)
    assert recorder.flush(20)
    found = list(read_counts(tmp_path / "trace"))
    assert [(each.name, each.value, each.process.role) for each in found] == [
        ("leases", 1.0, "tester"), ("leases", 2.5, "tester"),
    ]  # fmt: skip
    assert found[0].at_ns <= found[1].at_ns


@pytest.mark.parametrize("trouble", ["a file stands there", "the disk is full"])
def test_a_folder_that_cannot_be_written_costs_spans_and_is_logged_once(
    start: Callable[..., Recorder], tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = tmp_path / "trace"
    if trouble == "a file stands there":
        folder.write_text("")
    else:

        def full(descriptor: int, message: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, "_write", full)
    recorder = start()
    for _ in range(3):
        one(recorder).end()
    assert not recorder.flush(20)
    one(recorder).end()
    assert recorder.dropped >= 1
    assert len([each for each in caplog.records if each.name == module.__name__]) == 1
    assert list(read_spans(folder)) == []


def test_a_disk_that_stalls_delays_nothing_and_costs_what_memory_cannot_hold(
    start: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 10)
    stalls, entered, write = threading.Event(), threading.Event(), module._write_text

    def stalled(descriptor: int, text: str) -> None:
        if '"spans"' in text:
            entered.set()
            stalls.wait(60)
        write(descriptor, text)

    monkeypatch.setattr(module, "_write_text", stalled)
    recorder = start()
    one(recorder, "first").end()
    assert entered.wait(20)
    for number in range(25):
        one(recorder, str(number)).end()
    assert recorder.dropped == 15
    stalls.set()
    assert recorder.flush(20)
    names = [each.name for each in read_spans(tmp_path / "trace")]
    assert names == ["first", *map(str, range(10))]
    (file,) = (tmp_path / "trace").iterdir()
    assert json.loads(file.read_text().splitlines()[-1])["dropped"] == 15


_KILLED = """\
import os, sys, time
from trims.trace.spans import configure, recorder, span
configure(sys.argv[1], "victim", everything=True)
outer = span("outer")
with span("finished", parent=outer.context):
    pass
recorder().flush(30)
print("written", flush=True)
time.sleep(60)
"""


def test_a_process_that_is_killed_leaves_its_spans_and_its_open_ones_as_unfinished(tmp_path: Path) -> None:
    victim = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert victim.stdout is not None
    try:
        assert victim.stdout.readline() == b"written\n"
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait(20)
        victim.stdout.close()
    (file,) = tmp_path.iterdir()
    with file.open("a") as torn:
        torn.write('{"spans":[["half of a line')
    (trace,) = read_traces(tmp_path)
    assert [(each.name, each.is_finished) for each in trace.spans] == [("outer", False), ("finished", True)]
    assert trace.spans[0].process.role == "victim"


def test_a_span_that_was_open_at_a_batch_and_ended_later_is_read_once(
    start: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder = start()
    long, short = one(recorder, "long"), one(recorder, "short")
    short.end()
    assert recorder.flush(20)
    assert {each.name: each.is_finished for each in read_spans(tmp_path / "trace")} == {"long": False, "short": True}
    long.end()
    assert recorder.flush(20)
    assert [(each.name, each.is_finished) for each in read_spans(tmp_path / "trace")] == [
        ("short", True), ("long", True),
    ]  # fmt: skip


def test_spans_of_many_threads_are_all_written(start: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = start()

    def work() -> None:
        for _ in range(500):
            one(recorder).end()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert recorder.flush(20)
    assert len({each.span_id for each in read_spans(tmp_path / "trace")}) == 4000
    assert recorder.dropped == 0


def test_what_is_left_is_written_at_the_end_and_the_file_is_closed(
    start: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder = start()
    one(recorder).end()
    recorder.close()
    recorder.close()
    assert [each.name for each in read_spans(tmp_path / "trace")] == ["one"]
    wait_until(lambda: recorder._descriptor < 0, "its file is open")
    one(recorder).end()
    assert recorder.dropped == 1


def test_the_clock_on_the_wall_may_be_set_without_moving_spans(
    start: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = start()
    one(recorder, "before").end()
    assert recorder.flush(20)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)
    one(recorder, "after").end()
    assert recorder.flush(20)
    before, after = read_spans(tmp_path / "trace")
    assert before.process == after.process
    assert before.process.wall_ns(before.start_ns) <= after.process.wall_ns(after.start_ns)
    assert abs(after.process.wall_ns(after.end_ns) - real()) < 60e9


def test_spans_of_a_child_that_may_write_nothing_are_recorded_by_its_parent(
    start: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder, collector = start(), Collector(most=2)
    for name in ("a", "b", "c"):
        Span(collector, name, Level.MODEL, None, {}).end()
    rows = collector.take()
    assert (collector.dropped, collector.take()) == (1, [])
    nonsense: list[Any] = [
        7,
        [],
        [*rows[0][:-1], "no attributes"],
        ["x"] * 9,
        [*rows[0][:4], 99, *rows[0][5:]],
        [*rows[0][:5], -1, *rows[0][6:]],
    ]
    recorder.adopt([*nonsense, *rows], 4711, "predictor")
    recorder.adopt({"no": "list"}, 4711, "predictor")
    one(recorder, "own").end()
    assert recorder.flush(20)
    found = {each.name: (each.process.pid, each.process.role) for each in read_spans(tmp_path / "trace")}
    assert found == {"a": (4711, "predictor"), "b": (4711, "predictor"), "own": (os.getpid(), "tester")}


def test_a_long_file_is_followed_by_another_and_the_oldest_are_removed(
    start: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 400)
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    recorder = start()
    for number in range(40):
        one(recorder, str(number)).end()
        assert recorder.flush(20)
    sizes = [each.stat().st_size for each in (tmp_path / "trace").iterdir()]
    assert len(sizes) > 1
    assert sum(sizes) <= 2000 + 800
    assert max(sizes) < 800
    assert "39" in [each.name for each in read_spans(tmp_path / "trace")]


def test_files_of_running_processes_are_not_removed(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}-{number}.spans").write_text("x" * 100)
        os.utime(tmp_path / f"{number}-{number}.spans", (number, number))
    assert module.prune(tmp_path, 250, running=[0]) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0-0.spans", "3-3.spans"]
    assert module.prune(tmp_path / "no", 1) == 0


def in_memory(data: bytes) -> int:
    fd = os.memfd_create("spans")
    os.write(fd, data)
    return fd


def row(name: str) -> list[Any]:
    return ["0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "", name, 3, 1, 2, 7, {}]


def test_a_childs_file_may_hold_anything_and_only_its_spans_are_taken(
    start: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder, data = start(), b"\n".join(json.dumps(each).encode() for each in (row("good"), ["bad"], 5, row("too")))
    recorder.adopt_file(in_memory(data), len(data), 9, "child")
    for wrong in (b"{", b"7", b"[" * 100_000, b"\xff"):
        recorder.adopt_file(in_memory(wrong), len(wrong), 9, "child")
    on_disk = tmp_path / "spans"
    on_disk.write_bytes(data)
    recorder.adopt_file(os.open(on_disk, os.O_RDONLY), len(data), 9, "child")  # a file elsewhere may block
    reading, writing = os.pipe()
    recorder.adopt_file(reading, 100, 9, "child")
    os.close(writing)
    assert recorder.flush(20)
    found = [(each.name, each.process.pid) for each in read_spans(tmp_path / "trace")]
    assert (found, recorder.dropped) == ([("good", 9), ("too", 9)], 8)


def test_files_beyond_some_are_closed_and_counted(start: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = start()
    stalled = threading.Event()
    monitor = recorder._write_batch
    recorder._write_batch = lambda: (stalled.wait(20), monitor())[1]  # type: ignore[method-assign]
    data = json.dumps(row("one")).encode()
    for _ in range(module._MOST_FILES + 3):
        recorder.adopt_file(in_memory(data), len(data), 9, "child")
    recorder.adopt_file(in_memory(data), module._MOST_FILE_BYTES + 1, 9, "child")
    assert recorder.dropped == 4
    stalled.set()
    assert recorder.flush(20)
    assert len(list(read_spans(tmp_path / "trace"))) == module._MOST_FILES


def test_files_that_wait_in_a_forked_child_are_closed_there(start: Callable[..., Recorder]) -> None:
    recorder = start()
    fd = in_memory(b"[]")
    recorder._files.append((fd, 2, 9, "child"))
    recorder.begin_again()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_stages_of_an_answer_are_spans_whatever_else_the_child_sends(
    start: Callable[..., Recorder], tmp_path: Path
) -> None:
    recorder, parent = start(), SpanContext("1" * 32, "2" * 16)
    recorder.adopt_stages(parent, {"input_s": 0.5, 'a"b_s': 1e-9, "run_s": 2.0}, [1_000, 2_000, 3_000], 7, "predictor")
    for lengths, begins in (
        ({"x_s": -1.0}, [1]), ({"x_s": 1.0}, [-1]), ({"x_s": 1.0}, ["1"]), ({"x_s": "1"}, [1]),
        ({"x_s": 1.0}, [1 << 70]),
        ({"x_s": float("nan")}, [1]), ({"x_s": float("inf")}, [1]), (["x"], [1]), ({"x_s": 1.0}, {"a": 1}),
        ({"x_s": 1.0}, []), (None, None), ({"x_s": True}, [1]),
    ):  # fmt: skip
        recorder.adopt_stages(parent, lengths, begins, 7, "predictor")
    assert recorder.flush(20)
    found = list(read_spans(tmp_path / "trace"))
    assert [(each.name, each.start_ns, each.end_ns) for each in found] == [
        ("input", 1_000, 500_001_000), ('a"b', 2_000, 2_001), ("run", 3_000, 2_000_003_000),
    ]  # fmt: skip
    for each in found:
        assert (each.process.pid, each.process.role, each.trace_id, each.parent_id) == (
            7, "predictor", parent.trace_id, parent.span_id,
        )  # fmt: skip
    assert len({each.span_id for each in found}) == 3
