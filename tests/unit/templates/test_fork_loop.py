"""The loop of a template's process: it forks while it may, reports how forks end, and ends with its socket."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from trims.process import messages
from trims.process.lifeline import Lifeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The smallest role: what a fork does is in its message.
ROLE = """
import os, socket, sys
from trims.templates.fork_loop import ForkLoop, freeze

def links(pid):
    folder = f"/proc/{pid}/fd/"
    return sorted(os.readlink(folder + fd) for fd in os.listdir(folder) if os.path.lexists(folder + fd))

class Role(ForkLoop):
    def _import(self, message):
        for code in message["modules"]:
            exec(code)
        freeze()
        return {"op": "imported", "spoilt": self._blocker(()), "held": links("self")}

    def _fork(self, message, fds):
        pid = os.fork()
        if pid == 0:
            self._leave()
            exec(message["code"], {"os": os, "fds": fds, "links": links})
            os._exit(0)
        return pid, {"more": message["code"]}

    def _ended(self, pid):
        return {"state": open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]}

Role(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).serve()
"""
WAITS = "os.read(fds[0], 1)"


class Template:
    """The process of that role, and the other side of its socket."""

    def __init__(self) -> None:
        self.sock, theirs = messages.pair()
        self.lifeline = Lifeline()
        numbers = [theirs.fileno(), self.lifeline.fileno()]
        command = [sys.executable, "-c", ROLE, *map(str, numbers)]
        self.process = subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.DEVNULL)
        theirs.close()
        self.lifeline.given()
        self.sock.settimeout(50)
        self.pidfds: list[int] = []

    def hear(self) -> tuple[dict[str, Any], list[int]]:
        received = messages.receive(self.sock)
        assert received is not None
        return received

    def load(self, *code: str) -> dict[str, Any]:
        messages.send(self.sock, {"op": "import", "modules": list(code)})
        return self.hear()[0]

    def fork(self, code: str, *fds: int) -> dict[str, Any]:
        messages.send(self.sock, {"op": "fork", "code": code}, fds)
        answer, pidfds = self.hear()
        self.pidfds += pidfds
        return answer

    def end(self) -> None:
        self.sock.close()
        self.process.wait(50)
        self.lifeline.close()
        messages.close_all(self.pidfds)


@pytest.fixture
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.end()


@pytest.fixture
def held() -> Iterator[int]:
    """A descriptor at which forks wait until the test ends."""
    ours, theirs = os.pipe()
    yield ours
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize(("code", "status"), [("", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_the_end_of_a_fork_is_reported_before_its_number_is_free(template: Template, code: str, status: int) -> None:
    answer = template.fork(code)
    assert (answer["op"], answer["more"]) == ("forked", code)
    ended, _ = template.hear()
    assert (ended.pop("state"), ended) == ("Z", {"op": "ended", "pid": answer["pid"], "status": status})


def test_a_fork_has_nothing_of_its_template_and_of_other_forks(template: Template, held: int, tmp_path: Path) -> None:
    for _ in range(2):
        template.fork(WAITS, held)
    template.fork(f"open({str(tmp_path / 'held')!r}, 'w').write(' '.join(map(str, links('self'))))")
    assert template.hear()[0]["status"] == 0
    assert not [each for each in (tmp_path / "held").read_text().split() if "socket" in each or "pidfd" in each]


def test_many_forks_leave_nothing_in_the_template(template: Template) -> None:
    before = template.load("import json")["held"]
    for _ in range(30):
        assert template.fork("")["pid"] == template.hear()[0]["pid"]
    assert template.load()["held"] == before


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "2 threads"),
        ("import socket; global pair; pair = socket.socketpair()", "it holds a connection"),
    ],
)
def test_a_template_that_is_spoilt_says_so_and_refuses_to_fork(template: Template, code: str, why: str) -> None:
    assert why in template.load(code)["spoilt"]
    answer = template.fork("")
    assert (answer["op"], template.pidfds) == ("refused", [])
    assert why in answer["why"]


def test_a_template_ends_with_its_socket_and_its_forks_do_not(template: Template, held: int) -> None:
    template.fork(WAITS, held)
    template.sock.close()
    assert template.process.wait(50) == 0
    poll = select.poll()
    poll.register(template.pidfds[0], select.POLLIN)
    assert not poll.poll(0)
    signal.pidfd_send_signal(template.pidfds[0], signal.SIGKILL)
    assert poll.poll(50_000)
