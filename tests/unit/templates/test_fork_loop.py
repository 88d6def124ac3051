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

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The smallest role: what a fork does is in its message.
ROLE = """
import os, socket, sys
from trims.templates.fork_loop import ForkLoop, freeze

def links():
    folder = "/proc/self/fd/"
    return sorted(os.readlink(folder + fd) for fd in os.listdir(folder) if os.path.lexists(folder + fd))

class Role(ForkLoop):
    def _import(self, message):
        exec(message["modules"])
        freeze()
        return {"op": "imported", "unfit": self._blocker(()), "held": links()}

    def _fork(self, message, fds):
        pid = os.fork()
        if pid == 0:
            self._leave()
            exec(message["code"])
            os._exit(0)
        return pid, {"more": message["code"]}

    def _ended(self, pid):
        return {"state": open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]}

Role(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).serve()
"""
SPOILS = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


class Template:
    """The process of that role, and the other side of its socket."""

    def __init__(self) -> None:
        self.sock, theirs = messages.pair()
        self.sock.settimeout(50)
        self.pidfds: list[int] = []
        with theirs, open(os.devnull) as lifeline:
            numbers = [theirs.fileno(), lifeline.fileno()]
            self.process = subprocess.Popen([sys.executable, "-c", ROLE, *map(str, numbers)], pass_fds=numbers)

    def ask(self, **message: Any) -> dict[str, Any]:
        messages.send(self.sock, message)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        message, pidfds = messages.receive(self.sock) or ({}, [])
        self.pidfds += pidfds
        return message


@pytest.fixture
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.sock.close()
    made.process.wait(50)
    messages.close_all(made.pidfds)


@pytest.mark.parametrize(("code", "status"), [("", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_the_end_of_a_fork_is_reported_before_its_number_is_free(template: Template, code: str, status: int) -> None:
    answer = template.ask(op="fork", code=code)
    assert (answer["op"], answer["more"]) == ("forked", code)
    assert template.hear() == {"op": "ended", "pid": answer["pid"], "status": status, "state": "Z"}


def test_forks_leave_nothing_in_a_template_and_have_nothing_of_it(template: Template) -> None:
    before = template.ask(op="import", modules="")["held"]
    template.ask(op="fork", code="import time; time.sleep(600)")
    for _ in range(30):
        template.ask(op="fork", code="os._exit(sum('socket' in each or 'pidfd' in each for each in links()))")
        assert template.hear()["status"] == 0
    signal.pidfd_send_signal(template.pidfds[0], signal.SIGKILL)
    assert template.hear()["status"] == -signal.SIGKILL
    assert template.ask(op="import", modules="")["held"] == before


def test_a_template_that_is_spoilt_says_so_and_refuses_to_fork(template: Template) -> None:
    assert "2 threads" in template.ask(op="import", modules=SPOILS)["unfit"]
    answer = template.ask(op="fork", code="")
    assert (answer["op"], "2 threads" in answer["why"], template.pidfds) == ("refused", True, [])


def test_a_template_ends_with_its_socket_and_its_forks_do_not(template: Template) -> None:
    template.ask(op="fork", code="import time; time.sleep(600)")
    template.sock.close()
    assert template.process.wait(50) == 0
    poll = select.poll()
    poll.register(template.pidfds[0], select.POLLIN)
    assert not poll.poll(0)
    signal.pidfd_send_signal(template.pidfds[0], signal.SIGKILL)
    assert poll.poll(50_000)
