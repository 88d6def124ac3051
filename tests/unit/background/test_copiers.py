"""The daemon's copiers: real processes that copy and hash, give way to requests, and may die at any moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.background.copiers import HERE_BYTES, SLICE_BYTES, Copiers, LostCopierError, Process
from trims.background.task import Order, SourceFailedError, Task
from trims.trace import spans
from trims.trace.reader import read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NBYTES = HERE_BYTES + SLICE_BYTES + 1234


class Depot:
    """Copiers, a source and a target, and the processes that were started."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.copiers = Copiers(self._start)
        self.source, self.target = os.memfd_create("source"), os.memfd_create("target")
        self.data = os.urandom(NBYTES)
        os.write(self.source, self.data)
        os.ftruncate(self.target, NBYTES)
        self.order = Order(Task.of_file(NBYTES, large_pages=True), [self.source], self.target)

    def _start(self) -> Process:
        self.processes.append(Process())
        return self.processes[-1]

    def carry(
        self,
        moved: Callable[[int], object] = lambda _: None,
        is_awaited: Callable[[], bool] = lambda: False,
        order: Order | None = None,
    ) -> dict[str, str] | None:
        def told(nbytes: int, took_s: float) -> None:
            assert took_s >= 0.0
            moved(nbytes)

        return self.copiers.carry(order or self.order, bytes_per_s=None, moved=told, is_awaited=is_awaited)

    @property
    def expected(self) -> dict[str, str]:
        return {"blake3": blake3.blake3(self.data).hexdigest()}

    def end(self) -> None:
        self.copiers.close()
        for process in self.processes:
            process.wait(10)
        os.close(self.source)
        os.close(self.target)


@pytest.fixture
def depot() -> Iterator[Depot]:
    made = Depot()
    yield made
    made.end()


def test_bytes_are_copied_and_hashed_by_a_process_of_the_lowest_priority(depot: Depot) -> None:
    moved: list[int] = []
    assert depot.carry(moved.append) == depot.expected
    assert os.pread(depot.target, NBYTES + 1, 0) == depot.data
    assert sum(moved) == NBYTES
    assert max(moved) == SLICE_BYTES
    (process,) = depot.processes
    assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE


def test_one_copier_does_task_after_task_and_two_do_two_at_once(depot: Depot) -> None:
    for _ in range(3):
        assert depot.carry() == depot.expected
    assert len(depot.processes) == 1
    met = threading.Barrier(2)
    hash_only = Order(Task.of_file(NBYTES), [depot.source])
    found: list[object] = []
    both = [
        threading.Thread(target=lambda: found.append(depot.carry(lambda _: _meet(met), order=hash_only)))
        for _ in range(2)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert found == [depot.expected] * 2
    assert len(depot.processes) == 2


def _meet(met: threading.Barrier) -> None:
    try:
        met.wait(10)
    except threading.BrokenBarrierError:
        raise AssertionError("one waited for the other") from None


def test_what_is_short_is_done_without_a_process(depot: Depot) -> None:
    order = Order(Task.of_file(1000), [depot.source])
    assert depot.carry(order=order) == {"blake3": blake3.blake3(depot.data[:1000]).hexdigest()}
    assert depot.processes == []


@pytest.mark.parametrize("nbytes", [1000, NBYTES])
def test_a_copier_gives_way_to_a_request_and_writes_nothing_after_that(depot: Depot, nbytes: int) -> None:
    order = Order(Task.of_file(nbytes), [depot.source], depot.target)
    told: list[int] = []
    assert depot.carry(told.append, lambda: bool(told) or nbytes == 1000, order) is None
    written = os.pread(depot.target, NBYTES, 0)
    time.sleep(0.05)
    assert os.pread(depot.target, NBYTES, 0) == written
    assert depot.carry() == depot.expected, "and is there for the next task"
    assert len(depot.processes) == 1


def test_a_copier_that_gets_no_processor_is_killed_once_a_request_waits(depot: Depot) -> None:
    stopped = threading.Event()

    def stop(_: int) -> None:
        os.kill(depot.processes[0].pid, signal.SIGSTOP)
        stopped.set()

    asked: list[bool] = []
    assert depot.carry(stop, lambda: stopped.is_set() and bool(asked.append(True) or len(asked) > 1)) is None
    assert depot.processes[0].ended
    assert depot.carry() == depot.expected


def test_a_copier_that_does_not_even_begin_is_killed_once_a_request_waits(depot: Depot) -> None:
    assert depot.carry() == depot.expected
    os.kill(depot.processes[0].pid, signal.SIGSTOP)
    assert depot.carry(is_awaited=lambda: True) is None
    assert depot.processes[0].ended
    assert depot.carry() == depot.expected


def test_without_another_thread_the_work_is_done_in_the_daemon(
    depot: Depot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert depot.carry() == depot.expected
    assert "can't start new thread" in caplog.text
    assert depot.processes == []


@pytest.mark.parametrize("when", ["before", "meanwhile", "idle"])
def test_the_task_of_a_copier_that_is_killed_is_done_again_in_the_daemon(
    depot: Depot, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    if when != "meanwhile":
        assert depot.carry() == depot.expected
        os.kill(depot.processes[0].pid, signal.SIGKILL)
        if when == "idle":
            depot.processes[0].wait()
    killed: list[int] = []
    done: list[int] = []

    def kill(nbytes: int) -> None:
        done.append(nbytes)
        if when == "meanwhile" and not killed:
            killed.append(1)
            os.kill(depot.processes[0].pid, signal.SIGKILL)

    assert depot.carry(kill) == depot.expected
    assert os.pread(depot.target, NBYTES + 1, 0) == depot.data
    assert sum(done) == NBYTES, "what is done again is not told again"
    if when == "meanwhile":
        assert "goes on in the daemon" in caplog.text


def test_without_a_process_the_work_is_done_all_the_same(depot: Depot, caplog: pytest.LogCaptureFixture) -> None:
    def cannot() -> Process:
        raise LostCopierError("no copier can be started: too many open files")

    depot.copiers = Copiers(cannot)
    assert depot.carry() == depot.expected
    assert "too many open files" in caplog.text


def test_files_that_fail_are_told_apart_and_cost_no_copier(depot: Depot) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            depot.carry(order=Order(Task.of_file(NBYTES), [depot.source], full))
        with pytest.raises(SourceFailedError, match="truncated"):
            depot.carry(order=Order(Task.of_file(NBYTES + 1), [depot.source]))
    os.close(full)
    assert len(depot.processes) == 1


def test_a_report_that_raises_ends_the_task_and_its_copier(depot: Depot) -> None:
    def stop(_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        depot.carry(stop)
    assert depot.processes[0].wait(10) == 0


def test_all_end_with_their_daemon(depot: Depot) -> None:
    depot.carry()
    os.kill(depot.processes[0].pid, signal.SIGSTOP)  # one that is stopped ends, too
    depot.copiers.close()
    depot.copiers.close()
    assert depot.processes[0].wait(10) == -signal.SIGKILL
    assert depot.carry() == depot.expected, "as a task that began before the end"
    assert depot.processes[1].wait(10) == 0


def test_a_copier_that_cannot_notice_the_end_of_its_daemon_ends_with_it(depot: Depot) -> None:
    assert depot.carry() == depot.expected
    (process,) = depot.processes
    os.kill(process.pid, signal.SIGSTOP)
    process._child.lifeline.close()  # as the kernel closes it when a daemon is killed
    assert process.wait(20) == -signal.SIGKILL


def test_a_copier_reports_its_part_of_a_trace_with_its_answer(depot: Depot, tmp_path: Path) -> None:
    spans.configure(tmp_path, "daemon")
    try:
        depot.carry()  # of no trace
        with spans.continued(f"00-{'1' * 32}-{'2' * 16}-01"), spans.span("copy") as copying:
            assert depot.carry() == depot.expected
    finally:
        spans.stop()
    (trace,) = read_traces(tmp_path)
    (carried,) = (each for each in trace.spans if each.name == "carry")
    assert copying.context is not None
    assert (carried.parent_id, carried.process.role) == (copying.context.span_id, "copier")
    assert (carried.process.pid, carried.attributes) == (depot.processes[0].pid, {"carried_bytes": NBYTES})


def test_a_task_that_fails_is_reported_with_its_error(depot: Depot, tmp_path: Path) -> None:
    os.ftruncate(depot.source, NBYTES // 2)
    spans.configure(tmp_path, "daemon")
    try:
        with spans.continued(f"00-{'1' * 32}-{'2' * 16}-01"), pytest.raises(SourceFailedError):
            depot.carry()
    finally:
        spans.stop()
    (trace,) = read_traces(tmp_path)
    (carried,) = trace.spans
    assert (carried.name, carried.attributes["error.type"]) == ("carry", "SourceFailedError")
