"""Lifelines: a process ends with the one it depends on, whatever it is doing, and cannot harm another by it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from trims.process.lifeline import Lifeline, has_ended

_DEPENDS = """
import os, socket, sys
from trims.process.lifeline import depend_on
os.setsid()
own = int(sys.argv[1])
depend_on(own)
"""
_BUSY = 'print("ready", flush=True)\nwhile True: pass'
_WITH_CHILD = (
    'import subprocess; child = subprocess.Popen(["sleep", "600"])\nprint(child.pid, flush=True); child.wait()'
)
_MISUSES = """
failed = []
for misuse in (
    lambda: os.write(own, b"x"),
    lambda: os.open(f"/proc/self/fd/{own}", os.O_RDWR),
    lambda: os.open(f"/proc/self/fd/{own}", os.O_WRONLY),
):
    try:
        misuse()
    except OSError as error:
        failed.append(type(error).__name__)
print(*failed, flush=True)
socket.socket(fileno=own).shutdown(socket.SHUT_RDWR)
"""


def start(lifeline: Lifeline, code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _DEPENDS + code, str(lifeline.fileno())],
        pass_fds=[lifeline.fileno()],
        stdout=subprocess.PIPE,
    )
    lifeline.given()
    return process


def test_a_process_that_never_looks_ends_with_the_holder_of_its_lifeline() -> None:
    lifeline = Lifeline()
    with start(lifeline, _BUSY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert process.poll() is None
        lifeline.close()
        assert process.wait(60) == -signal.SIGKILL


def test_a_process_may_end_its_group_before_its_lifeline_does() -> None:
    lifeline = Lifeline()
    leaves = 'import subprocess; print(subprocess.Popen(["sleep", "600"]).pid, flush=True)'
    ends = "from trims.process.lifeline import end_group; end_group()"
    with start(lifeline, f"{leaves}\n{ends}") as process:
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
        assert process.wait(60) == -signal.SIGKILL
        poll = select.poll()
        poll.register(child, select.POLLIN)
        assert poll.poll(60_000), "what it has started is alive"
        os.close(child)
    lifeline.close()


def test_what_a_dependent_process_has_started_ends_with_it() -> None:
    lifeline = Lifeline()
    with start(lifeline, _WITH_CHILD) as process:
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
        lifeline.close()
        assert process.wait(60) == -signal.SIGKILL
        assert select.select([child], [], [], 60)[0]
        os.close(child)


def test_the_kernel_ends_a_process_whose_holder_was_killed() -> None:
    holder_code = """
import subprocess, sys
from trims.process.lifeline import Lifeline
lifeline = Lifeline()
process = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(lifeline.fileno())], pass_fds=[lifeline.fileno()])
lifeline.given()
process.wait()
"""
    command = [sys.executable, "-c", holder_code, _DEPENDS + "print(os.getpid(), flush=True)\nwhile True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        dependent = os.pidfd_open(int(holder.stdout.readline()))
        holder.kill()
        assert select.select([dependent], [], [], 60)[0]
        os.close(dependent)


def test_a_process_that_comes_too_late_ends_at_once() -> None:
    lifeline = Lifeline()
    given = os.dup(lifeline.fileno())
    lifeline.close()
    os.set_inheritable(given, True)
    with subprocess.Popen([sys.executable, "-c", _DEPENDS + _BUSY, str(given)], pass_fds=[given]) as process:
        assert process.wait(60) == -signal.SIGKILL
    os.close(given)


def test_misuse_of_a_lifeline_reaches_neither_its_holder_nor_another_process() -> None:
    one, other = Lifeline(), Lifeline()
    with start(one, _MISUSES) as bad, start(other, _BUSY) as good:
        assert bad.stdout is not None
        assert good.stdout is not None
        assert good.stdout.readline() == b"ready\n"
        assert bad.stdout.readline() == b"BrokenPipeError OSError OSError\n"
        assert bad.wait(60) in {0, -signal.SIGKILL}
        assert good.poll() is None
        other.close()
        assert good.wait(60) == -signal.SIGKILL
    one.close()


def test_a_lifeline_is_known_to_have_ended_once_it_was_let_go() -> None:
    lifeline = Lifeline()
    own = os.dup(lifeline.fileno())
    lifeline.given()
    assert not has_ended(own)
    lifeline.close()
    lifeline.close()
    assert has_ended(own, 60)
    os.close(own)
