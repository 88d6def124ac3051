"""The weight of a session: set as a whole, by any user, and back again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from trims.process.scheduling_class import BACKGROUND, CHANGE_PAUSE_S, GIVES_WAY, weigh


def niceness(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel does not group by session")
def test_a_session_gives_way_and_takes_it_back() -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        found = []
        for wanted in (GIVES_WAY, BACKGROUND, 0):
            time.sleep(2 * CHANGE_PAUSE_S)  # or the kernel may put it off
            weigh(leader.pid, wanted)
            found.append((niceness(leader.pid), niceness(child)))
        subprocess.run(["kill", str(child)], check=True)
    assert found == [(10, 10), (19, 19), (0, 0)]


def test_a_process_that_is_gone_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        weigh(2**22 + 1, GIVES_WAY)
