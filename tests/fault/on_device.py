"""Daemons with a device, for tests on the fake driver: what lies there, and clients that are processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trims.keeper.client import KeeperConnection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims_client.device import DeviceTensor

    from trims.daemon.main import Daemon

UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER_UUID = "GPU-00000000-0000-0000-0000-000000000002"
TOTAL_BYTES = 256 << 20

_CLIENT = """
import sys
from trims_client import connect
with connect(sys.argv[1]) as session:
    weights = session.open_file(sys.argv[2], place="gpu")
    print("open", flush=True)
    sys.stdin.readline()
    if sys.argv[3] == "close":
        weights.close()
        print("closed", flush=True)
        sys.stdin.readline()
print("session closed", flush=True)
sys.stdin.readline()
"""


def read(tensor: DeviceTensor) -> bytes:
    """On the fake, device memory is this process's own."""
    return bytes((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.address)) if tensor.nbytes else b""


@contextmanager
def client(daemon: Daemon, path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened a file's weights on the device."""
    command = [sys.executable, "-c", _CLIENT, str(daemon.config.runtime_dir), str(path), how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def say(process: subprocess.Popen[str], answer: str) -> None:
    """Let it go on, and wait for what it says next."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{answer}\n"


def kill_keeper(daemon: Daemon, uuid: str = UUID) -> None:
    """SIGKILL."""
    with KeeperConnection(daemon.config.runtime_dir / f"{uuid}.sock") as keeper:
        os.kill(keeper.hello().pid, signal.SIGKILL)
