"""The command's side of a load: the generator killed, Ctrl-C, and an early end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
from load_server import __file__ as load_server_file
from load_server import load_server
from loads import closed_order, open_order
from trims_bench.workloads import load
from trims_bench.workloads.load import DONE, INTERRUPTED, STOPPED, Driven, drive
from trims_bench.workloads.records import RECORD, kind_of

from trims.core.errors import InternalError
from trims.process.ends import ProcessEnd
from trims.process.python import run_code

if TYPE_CHECKING:
    from trims.process.child import Child

TIMES = [number * 0.01 for number in range(3000)]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """Generators that were started."""
    found: list[Child] = []

    def start(*given: object, **more: object) -> Child:
        found.append(child(*given, **more))  # type: ignore[arg-type]
        return found[-1]

    child = load.Child
    monkeypatch.setattr(load, "Child", start)
    return found


def test_a_whole_load_reports_all_requests_and_how_many_connections() -> None:
    with load_server() as port:
        driven = drive(open_order(port, TIMES[:50]))
    assert (driven.ended, len(driven.records)) == (DONE, 50)
    assert driven.connections >= 1
    assert driven.cpu_s > 0
    assert driven.scheduling in ("fifo", "other")


# fault (loads): the generator is killed or hangs -> what it reported and why it ended; status 1
def test_a_generator_that_is_killed_leaves_what_it_had_reported(children: list[Child]) -> None:
    def watch(driven: Driven) -> bool:
        if len(driven.packed) >= 20 * RECORD.size:
            os.kill(children[0].pid, signal.SIGKILL)
        return False

    with load_server() as port:
        driven = drive(open_order(port, TIMES), watch)
    assert driven.ended == "the generator was ended by SIGKILL"
    assert 20 <= len(driven.records) < len(TIMES)
    assert children[0].status == -signal.SIGKILL


# fault (loads): Ctrl-C, or the command is killed -> what was recorded, status 130; no process
def test_ctrl_c_ends_a_load_and_keeps_what_was_recorded() -> None:
    seen: list[int] = []

    def watch(driven: Driven) -> bool:
        if not seen:
            os.kill(os.getpid(), signal.SIGINT)
        seen.append(len(driven.packed))
        return False

    before = signal.getsignal(signal.SIGINT)
    with load_server("--delay-s", "0.5") as port:
        driven = drive(open_order(port, TIMES), watch)
    assert driven.ended == INTERRUPTED
    outcomes = {kind_of(int(each)) for each in driven.records["status"]}
    assert outcomes == {"200", "stopped"}, "those on their way are reported as what they are"
    assert len(driven.records) < len(TIMES)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_watch_may_end_a_load_before_its_time() -> None:
    with load_server() as port:
        driven = drive(closed_order(port, 2), lambda found: len(found.packed) > 0)
    assert driven.ended == STOPPED
    assert len(driven.records) > 0


def test_a_load_may_run_outside_the_main_thread() -> None:
    found: list[Driven] = []
    with load_server() as port:
        thread = threading.Thread(target=lambda: found.append(drive(open_order(port, [0.0]))))
        thread.start()
        thread.join()
    assert found[0].ended == DONE


def test_a_generator_that_is_silent_is_ended_at_last(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_GRACE_S", 0.3)
    monkeypatch.setattr(load, "_seconds", lambda _: 0.0)
    with load_server() as port:
        driven = drive(closed_order(port, 1), lambda _: bool(os.kill(children[0].pid, signal.SIGSTOP)))
    assert "did not report in time" in driven.ended
    assert children[0].status == -signal.SIGKILL


def test_a_generator_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "run_module", lambda *_: ["/nonexistent/python"])
    with pytest.raises(InternalError):
        drive(open_order(1, [0.0]))


# fault (loads): Ctrl-C, or the command is killed
def test_a_generator_ends_with_a_command_that_is_killed() -> None:
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from loads import closed_order\n"
        "from trims_bench.workloads.load import drive\n"
        "drive(closed_order(int(sys.argv[2]), 2), lambda _: print('runs', flush=True))\n"
    )
    with load_server() as port:
        command = run_code(code, os.path.dirname(load_server_file), str(port))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                (generator,) = map(int, file.read().split())
            with ProcessEnd(generator) as end:
                process.send_signal(signal.SIGKILL)
                assert end.wait(30)
