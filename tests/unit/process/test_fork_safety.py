"""The gate: a process with another thread, a device or a connection is not forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

SPOILS = {
    "a thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a connection": "import socket; pair = socket.socketpair()",
    "a device": "import os; os.symlink = None; fork_safety._DEVICES = ('/dev/null',); file = open('/dev/null')",
}
WHY = {"a thread": "it has 2 threads", "a connection": "it holds a connection", "a device": "it has opened /dev/null"}


def verdict(code: str) -> str:
    program = f"from trims.process import fork_safety\n{code}\nprint(fork_safety.fork_blocker(()))"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, stdin=subprocess.PIPE
    ).stdout.strip()


def test_a_fresh_process_may_be_forked() -> None:
    assert verdict("") == "None"


@pytest.mark.parametrize("what", SPOILS)
def test_what_a_child_cannot_have_shuts_the_gate(what: str) -> None:
    assert verdict(SPOILS[what]).startswith(WHY[what])


def test_known_connections_are_no_reason() -> None:
    code = "import socket; pair = socket.socketpair()\nown = [end.fileno() for end in pair]\n"
    code += "why = fork_safety.fork_blocker\n"
    assert verdict(code + "fork_safety.fork_blocker = lambda known: why(own)") == "None"


def test_one_parallel_forward_pass_of_torch_shuts_the_gate() -> None:
    code = "import torch; torch.set_num_threads(2); torch.ones(512, 512) @ torch.ones(512, 512)"
    assert "threads" in verdict(code)
