"""Real datagrams that a daemon in its own process sends to the service manager that has started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S

from trims.daemon.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVES = """
import sys
from trims.daemon.config import build_config
from trims.daemon.main import serve
settings = {"runtime_dir": sys.argv[1], "state_dir": sys.argv[2], "gpus": "none", "endpoint": "no"}
serve(build_config(settings, environment={}))
"""


@pytest.fixture
def manager(folder: Path) -> Iterator[socket.socket]:
    """The socket of a service manager, at `notify` in the folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(folder / "notify"))
        made.settimeout(WAIT_S)
        yield made


def serves(folder: Path, address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SERVES, str(folder / "run"), str(folder / "state")]
    return subprocess.Popen(command, env={**os.environ, "NOTIFY_SOCKET": address}, stderr=subprocess.PIPE)


def test_a_daemon_reports_that_it_is_ready_once_its_doors_are_open_and_that_it_stops(
    folder: Path, manager: socket.socket
) -> None:
    with serves(folder, str(folder / "notify")) as process:
        ready = manager.recv(4096).decode().splitlines()
        assert ready == ["READY=1", f"STATUS=serving at {folder / 'run'}; endpoint: the setting endpoint is no"]
        for name in ("attach/attach.sock", "control.sock"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(folder / "run" / name))
        process.send_signal(signal.SIGTERM)
        assert manager.recv(4096).decode().splitlines()[0] == "STOPPING=1"
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


def test_a_manager_that_does_not_listen_is_a_warning_and_the_daemon_serves(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier(str(folder / "nowhere")).ready("serving")
    (line,) = caplog.messages
    assert line.startswith(f"the service manager was not notified of READY=1 at {folder / 'nowhere'}: ")


def test_a_manager_that_reads_nothing_holds_nothing_up(folder: Path, manager: socket.socket) -> None:
    notifier = Notifier(str(folder / "notify"))
    for _ in range(1000):  # more than its queue takes
        notifier.ready("serving")
    assert manager.recv(4096).startswith(b"READY=1\n")


def test_an_abstract_socket_is_reached_and_a_status_is_one_line() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0trims-test-{os.getpid()}")
        manager.settimeout(WAIT_S)
        Notifier(f"@trims-test-{os.getpid()}").stopping("one\nREADY=1\n" + "x" * 1000)
        lines = manager.recv(4096).decode().splitlines()
    assert lines[0] == "STOPPING=1"
    assert lines[1].startswith("STATUS=one READY=1 xxx")
    assert len(lines) == 2


def test_processes_that_the_daemon_starts_do_not_find_the_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/manager")
    Notifier.from_environment()
    assert "NOTIFY_SOCKET" not in os.environ
    Notifier.from_environment().ready("without a manager nothing is sent")
