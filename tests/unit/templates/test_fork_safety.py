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
    program = f"from trims.templates import fork_safety\n{code}\nprint(fork_safety.fork_blocker(()))"
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


#: Thread that ends before each fork and is started again after it, as those of MXNet's engine.
RESTARTS = """
import os, threading
def start():
    global ended, thread
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, daemon=True)
    thread.start()
def end():
    ended.set()
    thread.join()
os.register_at_fork(before=end, after_in_parent=start)
start()
"""
ENDS = RESTARTS.replace(", after_in_parent=start", "")
STAYS = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
CRASHES = "import os; os.register_at_fork(after_in_child=os.abort)"
FAILS = "import os; os.register_at_fork(after_in_child=lambda: os._exit(3))"


def tried(code: str) -> tuple[bool, bool, int]:
    """Return whether a process was found fit to be forked, whether its threads restart, and how many it has left."""
    program = (
        f"from trims.templates import fork_safety\n{code}\nwhy, restarts = fork_safety.try_fork()\n"
        "assert why is None or isinstance(why, str)\n"
        "import os\ntry:\n    os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError:\n    pass\n"
        "else:\n    raise AssertionError\n"
        "print(why is None, restarts, len(fork_safety.threads()))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    fit, restarts, count = ended.stdout.split()
    return fit == "True", restarts == "True", int(count)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", (True, False, 0)),
        (RESTARTS, (True, True, 1)),
        (ENDS, (True, False, 0)),
        (STAYS, (False, False, 1)),
        (RESTARTS + STAYS, (False, False, 2)),
        (CRASHES, (False, False, 0)),
        (FAILS, (False, False, 0)),
        (STAYS + "\n" + FAILS, (False, False, 1)),
    ],
)
def test_two_forks_show_whether_threads_come_and_go_with_each(code: str, expected: tuple[bool, bool, int]) -> None:
    assert tried(code) == expected


def test_the_threads_beside_the_first_are_counted() -> None:
    code = f"import os\n{STAYS}\nprint(len(fork_safety.threads()), str(os.getpid()) in fork_safety.threads())"
    assert verdict(code).splitlines()[0] == "1 False"
