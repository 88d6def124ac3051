"""The copier's process: it gives way to all others, ends with its daemon, and keeps nothing of a task that is over."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import blake3
import pytest

from trims.background import child
from trims.background import child as cpu_quota
from trims.background.child import ALONE, BESIDE_OTHERS, Copier, CpuQuota, give_way
from trims.background.messages import check, send_order
from trims.background.task import PIECE_BYTES, Order, SourceFailedError, Task
from trims.process import messages

if TYPE_CHECKING:
    from collections.abc import Iterator


# A copier's share of a processor: a quarter while no other program computes, else a tenth.


class Machine:
    """A clock, and processor seconds: of all processes, and of this one."""

    def __init__(self) -> None:
        self.now_s = self.busy_s = self.own_s = 0.0
        self.share = CpuQuota(lambda: self.busy_s, lambda: self.own_s, lambda: self.now_s)

    def passes(self, seconds: float, *, busy_s: float = 0.0, own_s: float = 0.0) -> float:
        self.now_s += seconds
        self.busy_s += busy_s
        self.own_s += own_s
        return self.share.now()


def test_it_is_a_quarter_on_a_machine_that_does_nothing_else() -> None:
    assert Machine().passes(1.0, busy_s=0.2) == ALONE == 0.25


def test_it_is_a_tenth_while_others_compute() -> None:
    machine = Machine()
    assert machine.passes(1.0, busy_s=0.6) == BESIDE_OTHERS == 0.1
    assert machine.passes(1.0) == ALONE, "they have stopped"


def test_what_the_copier_itself_uses_does_not_count() -> None:
    assert Machine().passes(1.0, busy_s=0.9, own_s=0.7) == ALONE


def test_it_is_a_tenth_before_the_first_look() -> None:
    assert Machine().share.now() == BESIDE_OTHERS


def test_the_kernel_is_asked_twice_a_second_at_most() -> None:
    machine = Machine()
    assert machine.passes(0.5) == ALONE
    assert machine.passes(0.4, busy_s=0.4) == ALONE, "no look yet"
    assert machine.passes(0.1) == BESIDE_OTHERS


def test_it_is_a_tenth_where_the_kernel_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quota, "_STAT", "/nonexistent/stat")
    clock = iter(range(10))
    made = CpuQuota(clock=lambda: float(next(clock)))
    assert {made.now() for _ in range(5)} == {BESIDE_OTHERS}


def test_the_kernels_own_counts_show_a_program_that_computes() -> None:
    made = CpuQuota(own_s=lambda: 0.0)
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        pass
    assert made.now() == BESIDE_OTHERS


class Line:
    """A copier in a thread of this process, and the daemon's end of its socket."""

    def __init__(self) -> None:
        self.socket, theirs = messages.pair()
        self.slept: list[float] = []
        self.share = 0.25
        self._copier = Copier(theirs, self.slept.append, lambda: self.share)
        self._theirs = theirs
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with self._theirs:
            self._copier.serve()

    def begin(self, order: Order) -> dict[str, Any]:
        send_order(self.socket, order)
        return self._answer()

    def ask(self, **request: object) -> dict[str, Any]:
        messages.send(self.socket, request)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        received = messages.receive(self.socket)
        assert received is not None
        return check(received[0])


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.socket.close()
    made.thread.join()


@pytest.fixture
def source() -> Iterator[int]:
    fd = os.memfd_create("source")
    os.write(fd, os.urandom(3 * PIECE_BYTES))
    yield fd
    os.close(fd)


def test_a_task_is_done_in_slices_with_pauses_that_keep_the_bandwidth(line: Line, source: int) -> None:
    line.begin(Order(Task.of_file(3 * PIECE_BYTES), [source]))
    assert line.ask(do="go", nbytes=2 * PIECE_BYTES, bytes_per_s=1.0)["done"] == 2 * PIECE_BYTES
    assert line.slept[0] == pytest.approx(PIECE_BYTES, rel=0.01)
    assert line.slept[1] == pytest.approx(2 * PIECE_BYTES, rel=0.01), "after the first, which was not slept here"
    assert line.ask(do="go", nbytes=2 * PIECE_BYTES, bytes_per_s=None)["done"] == 3 * PIECE_BYTES
    assert len(line.slept) == 2
    expected = blake3.blake3(os.pread(source, 3 * PIECE_BYTES, 0)).hexdigest()
    assert line.ask(do="end") == {"digests": {"blake3": expected}}


def test_it_takes_no_more_than_its_share_of_a_processor(
    line: Line, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100))
    monkeypatch.setattr(child.time, "process_time", lambda: next(now))
    line.begin(Order(Task.of_file(3 * PIECE_BYTES), [source]))
    line.ask(do="go", nbytes=PIECE_BYTES, bytes_per_s=1e12)
    assert line.slept == [pytest.approx(3.0, rel=0.01)], "a quarter: three times as long as the piece took"


def test_a_pause_too_short_to_sleep_is_kept_after_the_next_piece(line: Line, source: int) -> None:
    line.share = 1.0
    line.begin(Order(Task.of_file(3 * PIECE_BYTES), [source]))
    line.ask(do="go", nbytes=3 * PIECE_BYTES, bytes_per_s=PIECE_BYTES / 0.0004)
    assert len(line.slept) < 3
    assert sum(line.slept) <= 3 * 0.0012


@pytest.mark.parametrize("how", ["end", "drop", "begin", "failure"])
def test_nothing_of_a_task_that_is_over_stays_open(line: Line, how: str) -> None:
    source = os.memfd_create("only this test's")
    if how != "failure":
        os.write(source, bytes(100))
    line.begin(Order(Task.of_file(100), [source]))
    if how == "begin":
        other = os.memfd_create("another")
        line.begin(Order(Task.of_file(0), [other]))
        os.close(other)
    elif how == "failure":
        with pytest.raises(SourceFailedError):
            line.ask(do="go", nbytes=100, bytes_per_s=None)
    else:
        line.ask(do=how)
    os.close(source)
    links = [
        os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdigit() and _is(name)
    ]
    assert not [link for link in links if "only this test's" in link]


def _is(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def test_it_ends_when_the_daemon_closes_its_end(line: Line, source: int) -> None:
    line.begin(Order(Task.of_file(100), [source]))
    line.socket.close()
    line.thread.join(10)
    assert not line.thread.is_alive()


def test_a_process_that_gives_way_runs_only_when_no_other_wants_the_processor() -> None:
    pid = os.fork()
    if pid == 0:
        give_way()
        as_it_is = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        os._exit(0 if as_it_is == (os.SCHED_IDLE, 19) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_it_ends_in_the_midst_of_a_long_pause_with_its_daemon(source: int) -> None:
    ours, theirs = messages.pair()
    with theirs:
        thread = threading.Thread(target=Copier(theirs).serve)
        thread.start()
        send_order(ours, Order(Task.of_file(3 * PIECE_BYTES), [source]))
        assert messages.receive(ours) == ({"done": 0}, [])
        messages.send(ours, {"do": "go", "nbytes": PIECE_BYTES, "bytes_per_s": 0.001})
        ours.close()
        thread.join(20)
        assert not thread.is_alive()
