"""Lifelines: a process ends with the one it depends on, whatever it is doing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_DEPENDS = """
import os, sys
from trims.wire.lifeline import depend_on
os.setsid()
depend_on(int(sys.argv[1]))
os.close(int(sys.argv[1]))
"""
_BUSY = 'print("ready", flush=True)\nwhile True: pass'
_WITH_CHILD = (
    'import subprocess; child = subprocess.Popen(["sleep", "600"])\nprint(child.pid, flush=True); child.wait()'
)


def start(reading_end: int, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _DEPENDS + code, str(reading_end)], pass_fds=[reading_end], stdout=subprocess.PIPE
    )


def test_a_process_that_never_looks_ends_with_the_holder_of_the_pipe() -> None:
    reading, writing = os.pipe()
    with start(reading, _BUSY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert process.poll() is None
        os.close(writing)
        assert process.wait(60) == -signal.SIGKILL
    os.close(reading)


def test_several_processes_may_depend_on_one_pipe_and_what_they_start_ends_too() -> None:
    reading, writing = os.pipe()
    with start(reading, _WITH_CHILD) as one, start(reading, _BUSY) as other:
        assert one.stdout is not None
        assert other.stdout is not None
        child = os.pidfd_open(int(one.stdout.readline()))
        other.stdout.readline()
        os.close(writing)
        assert (one.wait(60), other.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert select.select([child], [], [], 60)[0]
        os.close(child)
    os.close(reading)


def test_a_process_that_comes_too_late_ends_at_once() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with start(reading, _BUSY) as process:
        assert process.wait(60) == -signal.SIGKILL
    os.close(reading)
