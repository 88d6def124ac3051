"""The template's process: imports what it can, forks while it may, and buries its predictors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until
from trims_predictors.children.launcher import _ALWAYS, ENVIRONMENT
from trims_predictors.children.template_process import pid_behind
from trims_predictors.sandbox import landlock

from trims.process import messages
from trims.process.lifeline import Lifeline

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


class Supervisor:
    """The other side of a template."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.sock, theirs = messages.pair()
        self.lifeline = Lifeline()
        self.theirs: list[Lifeline] = []
        command = [sys.executable, "-m", "trims_predictors.worker.template", "--socket", str(theirs.fileno())]
        command += ["--lifeline", str(self.lifeline.fileno()), "--runtime-dir", str(folder), *more]
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno(), self.lifeline.fileno()],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, "TMPDIR": str(folder)},
        )
        theirs.close()
        self.lifeline.given()
        message, self.itself = self.hear()
        assert message == {"op": "here"}

    def hear(self) -> tuple[dict[str, Any], list[int]]:
        received = messages.receive(self.sock)
        assert received is not None
        return received

    def load(self, *modules: str) -> dict[str, Any]:
        messages.send(self.sock, {"op": "import", "modules": list(modules)})
        return self.hear()[0]

    def fork(self) -> tuple[dict[str, Any], list[int], socket.socket]:
        ours, theirs = messages.pair()
        self.theirs.append(lifeline := Lifeline())
        with theirs:
            messages.send(self.sock, {"op": "fork"}, [theirs.fileno(), lifeline.fileno(), sys.stderr.fileno()])
            lifeline.given()
            return *self.hear(), ours

    @property
    def pid(self) -> int:
        return pid_behind(self.itself[0], -1)

    def end(self) -> None:
        self.sock.close()
        for lifeline in self.theirs:
            lifeline.close()
        messages.close_all(self.itself)
        self.process.wait()
        self.lifeline.close()


@pytest.fixture
def supervisor(folder: Path) -> Iterator[Supervisor]:
    made = Supervisor(folder)
    yield made
    made.end()


def test_a_template_begins_with_descriptors_of_itself_and_its_guard(supervisor: Supervisor) -> None:
    itself, guard = (pid_behind(pidfd, -1) for pidfd in supervisor.itself)
    assert guard == supervisor.process.pid
    stat = (Path("/proc") / str(itself) / "stat").read_text()
    assert int(stat.rpartition(")")[2].split()[1]) == guard, "its guard is its parent"


def test_modules_are_imported_and_those_that_cannot_be_are_told(supervisor: Supervisor) -> None:
    answer = supervisor.load("json", "no_such_module", "colorsys")
    assert answer["unfit"] is None
    assert list(answer["failed"]) == ["no_such_module"]
    assert answer["failed"]["no_such_module"].startswith("ModuleNotFoundError")


def test_libraries_of_steps_do_not_keep_a_template_from_being_forked(supervisor: Supervisor) -> None:
    plugins = ("JpegImagePlugin", "PngImagePlugin", "WebPImagePlugin", "GifImagePlugin", "BmpImagePlugin")
    answer = supervisor.load(
        *_ALWAYS, *(f"PIL.{plugin}" for plugin in plugins), "PIL.ImageOps", "tokenizers", "tokenizers.tokenizers"
    )
    assert answer["unfit"] is None
    assert all(name.startswith(("PIL.", "tokenizers")) for name in answer["failed"]), "both are optional"


def test_a_fork_is_a_predictor_with_a_socket_of_its_own_and_its_end_is_told(supervisor: Supervisor) -> None:
    answer, (pidfd,), sock = supervisor.fork()
    assert answer["op"] == "forked"
    messages.send(sock, {"op": "unload"})
    ended, _ = supervisor.hear()
    assert ended == {"op": "ended", "pid": answer["pid"], "status": 0}
    os.close(pidfd)
    sock.close()


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_the_temporary_files_of_a_predictor_that_was_killed_are_removed(folder: Path) -> None:
    supervisor = Supervisor(folder, "--writable", str(folder))
    try:
        answer, (pidfd,), sock = supervisor.fork()
        own = folder / f"predictor-{answer['pid']}"
        wait_until(own.exists, "the predictor has no folder")
        (own / "inner").mkdir()
        (own / "inner" / "left").write_bytes(b"x")
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert supervisor.hear()[0]["op"] == "ended"
        assert not own.exists()
        os.close(pidfd)
        sock.close()
    finally:
        supervisor.end()


def test_template_and_predictors_end_with_the_supervisor_however_it_ends(supervisor: Supervisor) -> None:
    _, (pidfd,), sock = supervisor.fork()
    for lifeline in (supervisor.lifeline, *supervisor.theirs):
        lifeline.close()  # as the kernel does when the process is killed
    supervisor.process.wait()
    poll = __import__("select").poll()
    poll.register(pidfd, 1)
    assert poll.poll(30_000)
    os.close(pidfd)
    sock.close()
