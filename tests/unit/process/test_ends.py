"""The end of a process: waited for no longer than asked, and known at once of one that is gone."""

from __future__ import annotations

import subprocess
import sys

from trims.process.ends import ProcessEnd


def test_a_process_that_ends_ends_the_wait() -> None:
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert program.stdin is not None
    with ProcessEnd(program.pid) as process:
        assert not process.wait(0)
        program.stdin.close()
        assert process.wait(60)
        program.wait()
        assert process.wait(0)


def test_a_process_that_is_gone_has_ended() -> None:
    program = subprocess.Popen([sys.executable, "-c", ""])
    program.wait()
    with ProcessEnd(program.pid) as process:
        assert process.wait(0)
