"""Children are found whatever they are called."""

from __future__ import annotations

import os
import subprocess
import sys

from trims.process import subreaper


def test_children_are_found_whatever_their_names_and_also_when_they_have_ended() -> None:
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 1 (', 0, 0, 0); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", rename], **pipes) as living, subprocess.Popen(["true"]) as done:
        assert living.stdout is not None
        living.stdout.readline()
        os.waitid(os.P_PID, done.pid, os.WEXITED | os.WNOWAIT)
        assert {living.pid, done.pid} <= set(subreaper.children())
        living.communicate(b"\n")
    assert living.pid not in subreaper.children()
