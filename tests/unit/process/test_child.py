"""Child processes: what ties them to this one, and how they end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from trims.process import messages
from trims.process.child import Child, Ties, exit_words
from trims.process.lifeline import has_ended
from trims.process.python import run_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAYS = """
import os, subprocess
sock, lifeline = int(sys.argv[2]), int(sys.argv[4])
def say(text):
    os.write(sock, text.encode())
"""
#: Its own number, and that of a process that it starts.
BEGETS = 'other = subprocess.Popen(["sleep", "100"])\nsay("{\\"pid\\": %d}" % other.pid)\n'


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def begin(code: str, **how: object) -> Child:
        ties = Ties()
        started.append(Child(run_code(SAYS + code, *ties.arguments), ties, **how))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for child in started:
        child.close()
        child.close()


def said(child: Child) -> dict[str, object]:
    received = messages.receive(child.socket)
    assert received is not None
    return received[0]


def ends(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    try:
        return bool(poll.poll(20_000))
    finally:
        os.close(pidfd)


def test_a_child_has_its_ends_and_leads_a_session(start: Callable[..., Child]) -> None:
    child = start('say("{\\"leads\\": %d}" % (os.getsid(0) == os.getpid()))')
    assert said(child) == {"leads": 1}
    assert messages.receive(child.socket) is None, "this process holds no copy of the child's end"
    assert child.wait() == child.status == 0


@pytest.mark.parametrize(
    ("code", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 11)", -signal.SIGSEGV), ("pass", 0)]
)
def test_a_child_that_has_ended_reports_its_status_before_and_after_it_is_reaped(
    start: Callable[..., Child], code: str, status: int
) -> None:
    child = start(code)
    assert ends(child.watch())
    assert (child.status, child.exit_status()) == (None, status)
    assert (child.wait(10), child.status, child.wait()) == (status, status, status)


def test_what_a_child_has_started_ends_with_it(start: Callable[..., Child]) -> None:
    child = start(BEGETS)
    grandchild = os.pidfd_open(int(str(said(child)["pid"])))
    assert child.wait() == 0
    assert ends(grandchild)


def test_a_child_that_ignores_the_end_of_its_socket_is_killed_after_the_grace(start: Callable[..., Child]) -> None:
    child = start('say("{}")\nimport time; time.sleep(100)')
    assert said(child) == {}
    assert child.wait(0.0) is None
    assert child.end(0.05) == -signal.SIGKILL


def test_a_child_that_ends_with_its_socket_is_not_killed(start: Callable[..., Child]) -> None:
    child = start("os.read(sock, 1)\nsys.exit(7)")
    assert child.end(60.0) == 7


def test_a_child_that_was_reaped_is_not_killed_again(
    start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    child, killed = start("pass"), []
    child.wait()
    monkeypatch.setattr(os, "killpg", lambda *given: killed.append(given))
    child.kill()
    child.weigh(10)
    assert killed == []


def test_a_lifeline_that_is_closed_ends_the_group_of_a_child_that_depends_on_it(start: Callable[..., Child]) -> None:
    child = start(
        "from trims.process.lifeline import depend_on\ndepend_on(lifeline)\n" + BEGETS + "os.read(0, 1)\nother.wait()"
    )
    grandchild = os.pidfd_open(int(str(said(child)["pid"])))
    child.lifeline.close()
    assert child.wait(20) == -signal.SIGKILL
    assert ends(grandchild)


def test_a_child_that_leads_no_session_leaves_the_group_of_this_process_alone(start: Callable[..., Child]) -> None:
    child = start("os.read(sock, 1)", leads=False)
    child.kill()
    assert child.wait() == -signal.SIGKILL


def test_a_program_that_is_none_leaves_nothing_open() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    ties = Ties()
    with pytest.raises(FileNotFoundError):
        Child(["/no/program"], ties, stderr=subprocess.PIPE)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_ties_that_are_given_away_end_with_their_other_end() -> None:
    ties = Ties()
    sock, lifeline = map(os.dup, ties.fds)
    ties.given()
    assert not has_ended(lifeline)
    ties.close()
    ties.close()
    assert has_ended(lifeline, 10.0)
    assert os.read(sock, 1) == b""
    os.close(sock)
    os.close(lifeline)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (-signal.SIGKILL, "was ended by SIGKILL (by the kernel)"),
    ],
)
def test_an_exit_status_in_words_names_the_signal_and_who_may_have_sent_it(status: int, words: str) -> None:
    assert exit_words(status, " (by the kernel)") == words
