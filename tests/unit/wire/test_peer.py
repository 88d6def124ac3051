"""The process at the other end of a Unix socket, as the kernel reports it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from trims.wire.peer import Peer

if TYPE_CHECKING:
    from pathlib import Path

CONNECTS = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"


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
