"""A guard ends all that its template and the predictors have started, and nothing before that."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from trims.process.lifeline import Lifeline

#: Program that starts a process in a session of its own, whose parent ends at once, and prints its number.
_DETACH = """
import os, signal, sys, time
from trims.process.subreaper import adopt, end_strays
from trims.templates.reaper import BEGUN, HELPS, guarded
from trims.process.lifeline import depend_on
def detach():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, b"%d\\n" % os.getpid())
            time.sleep(600)
        os._exit(0)
    return os.read(reading, 100).decode()
own, sock = int(sys.argv[1]), os.open(os.devnull, os.O_RDONLY)
os.setsid()
"""


def start(lifeline: Lifeline, code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _DETACH + code, str(lifeline.fileno())],
        pass_fds=[lifeline.fileno()],
        stdout=subprocess.PIPE,
    )
    lifeline.given()
    return process


def told(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return os.pidfd_open(int(process.stdout.readline()))


def ended(pidfd: int, within_s: float = 60) -> bool:
    return bool(select.select([pidfd], [], [], within_s)[0])


@pytest.mark.parametrize("first", ["nothing else", "the guarded process"])
def test_what_made_a_session_of_its_own_ends_with_the_lifeline_after(first: str) -> None:
    lifeline = Lifeline()
    code = """
told = guarded(own, sock)
depend_on(own)
detached = detach()
told.report(BEGUN, int(detached))
print(os.getpid(), detached, sep="\\n", flush=True)
time.sleep(600)
"""
    with start(lifeline, code) as process:
        guarded, detached = told(process), told(process)
        if first == "the guarded process":
            signal.pidfd_send_signal(guarded, signal.SIGKILL)
            assert ended(guarded)
            assert not ended(detached, 0.2)
            assert process.poll() is None
        lifeline.close()
        assert process.wait(60) == 0
        assert ended(guarded)
        assert ended(detached)
    os.close(guarded)
    os.close(detached)


#: A template that has forked a predictor, which has detached a process of its own; and the same with a helper.
_TEMPLATE = """
told = guarded(own, sock)
reading, writing = os.pipe()
predictor = os.fork()
if predictor == 0:
    told.close()
    adopt()
    os.write(writing, detach().encode())
    time.sleep(600)
told.report(BEGUN, predictor)
stray, helper = os.read(reading, 100).decode(), os.fork()
if helper == 0: time.sleep(600)
told.report(HELPS, helper)
print(os.getpid(), predictor, stray.strip(), helper, sep="\\n", flush=True)
time.sleep(600)
"""


def test_what_predictors_leave_ends_with_them_also_when_their_template_is_gone() -> None:
    lifeline = Lifeline()
    with start(lifeline, _TEMPLATE) as process:
        template, predictor, stray, helper = pidfds = [told(process) for _ in range(4)]
        signal.pidfd_send_signal(template, signal.SIGKILL)
        assert ended(template)
        assert not ended(stray, 0.2), "its predictor lives"
        assert not ended(helper, 0), "a predictor may need it"
        assert process.poll() is None
        signal.pidfd_send_signal(predictor, signal.SIGKILL)
        assert ended(stray)
        assert ended(helper)
        assert process.wait(60) == 0, "nothing is left to guard"
    lifeline.close()
    for pidfd in pidfds:
        os.close(pidfd)


def test_what_a_template_leaves_that_ended_after_its_predictors_ends_with_it() -> None:
    lifeline = Lifeline()
    with start(lifeline, _TEMPLATE.replace("print(", "os.kill(predictor, 9)\nprint(")) as process:
        template, predictor, stray, helper = pidfds = [told(process) for _ in range(4)]
        assert ended(predictor)
        assert not ended(stray, 0.1), "it is its template's to end"
        signal.pidfd_send_signal(template, signal.SIGKILL)
        assert ended(stray)
        assert ended(helper)
        assert process.wait(60) == 0
    lifeline.close()
    for pidfd in pidfds:
        os.close(pidfd)


def test_a_guard_ends_by_itself_once_nothing_is_left() -> None:
    lifeline = Lifeline()
    with start(lifeline, "guarded(own, sock); print(os.getpid(), flush=True)") as process:
        assert process.wait(60) == 0
    lifeline.close()


def test_a_guarded_process_ends_with_its_guard() -> None:
    lifeline = Lifeline()
    with start(lifeline, "guarded(own, sock); print(os.getpid(), flush=True); time.sleep(600)") as process:
        guarded = told(process)
        process.kill()
        assert ended(guarded)
    os.close(guarded)
    lifeline.close()


def test_strays_are_ended_in_rounds_and_known_children_stay() -> None:
    code = """
adopt()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
known = os.fork()
if known == 0: time.sleep(600)
stray = detach()
print(f"{known}\\n{stray}", end="", flush=True)
signal.sigwait({signal.SIGUSR1})  # until both are looked at: a stray that has ended has no descriptor any more
while end_strays({known}): time.sleep(0.01)
print("done", flush=True)
time.sleep(600)
"""
    lifeline = Lifeline()
    with start(lifeline, code) as process:
        known, stray = told(process), told(process)
        process.send_signal(signal.SIGUSR1)
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert ended(stray)
        assert not ended(known, 0)
        process.kill()
        signal.pidfd_send_signal(known, signal.SIGKILL)
    os.close(known)
    os.close(stray)
    lifeline.close()
