"""The process at the other end of a Unix socket, as the kernel reports it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from trims.wire import peer as module
from trims.wire.peer import Peer, PeerProcess

if TYPE_CHECKING:
    from pathlib import Path

CONNECTS = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
#: Connects, has a child keep the socket, prints the child's number, and ends.
FORKS = """
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
os.close(1)
s.recv(1)
"""
#: An option that no kernel has: its answer is that of a kernel before 6.5.
UNKNOWN = 4096


def test_both_ends_of_a_pair_are_this_process() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Peer.of(ours) == Peer.of(theirs) == Peer(os.getpid(), os.geteuid(), os.getegid())


def test_a_listener_sees_the_process_that_connected(folder: Path) -> None:
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        process = subprocess.Popen([sys.executable, "-c", CONNECTS, path])
        try:
            connected, _ = listener.accept()
            with connected:
                assert Peer.of(connected) == Peer(process.pid, os.geteuid(), os.getegid())
        finally:
            process.wait()


@pytest.fixture(params=[module._PEERPIDFD, UNKNOWN], ids=["by the kernel", "by start times"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PEERPIDFD", request.param)


@pytest.mark.usefixtures("_ways")
def test_a_process_is_itself_until_it_has_ended(folder: Path) -> None:
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        child = subprocess.Popen([sys.executable, "-c", CONNECTS, path])
        connected, _ = listener.accept()
        with connected, PeerProcess(connected, Peer.of(connected)) as process:
            assert process.pid == child.pid
            process.check()
            connected.close()
            child.wait()
            with pytest.raises(ProcessLookupError):
                process.check()
            with pytest.raises(ProcessLookupError):
                process.take()


@pytest.mark.usefixtures("_ways")
def test_a_process_that_ended_and_left_its_socket_to_another_is_not_found(folder: Path) -> None:
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        done = subprocess.run([sys.executable, "-c", FORKS, path], stdout=subprocess.PIPE, check=True)
        connected, _ = listener.accept()
        with connected, pytest.raises(ProcessLookupError):
            PeerProcess(connected, Peer.of(connected))
        assert int(done.stdout) > 0


def test_a_number_that_was_given_again_is_another_process_without_the_kernels_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PEERPIDFD", UNKNOWN)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with PeerProcess(ours, Peer.of(ours)) as process:
            process.check()
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        with pytest.raises(ProcessLookupError):
            PeerProcess(
                ours, Peer.of(ours), age_s=since_boot_s
            )  # as if this process had been started after the connection came
