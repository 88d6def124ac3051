"""Daemons with a device, for tests on the fake driver or on both: what lies there, and clients that are processes."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from trims.keeper.client import KeeperConnection
from trims.memory.cuda import api
from trims.memory.cuda.connect import connect as connect_driver
from trims.testing.fake_cuda import make_devices
from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client.mapping.device import DeviceTensor

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


def reached(request: pytest.FixtureRequest, folder: Path) -> str:
    """The body of a fixture with the parameters `fake` and `driver`: how the device is reached, which is made if fake.

    The parameters stay with each file, as the mark `gpu` in a file's text has the check of a device collect it.
    """
    if request.param == "driver":
        return str(request.getfixturevalue("real_device"))
    (folder / "cuda").mkdir()
    return make_devices(folder / "cuda", [api.Device(UUID, "Fake", 512 << 20)])


def starter(serve: Callable[..., Daemon], kind: str) -> Callable[..., Daemon]:
    """The body of a fixture: starts a daemon with that device; a driver that the device has not is a skip."""
    device = connect_driver(kind).devices()[0]

    def start(driver: str = "vmm") -> Daemon:
        if not getattr(device, driver):
            pytest.skip(f"{device.name} cannot share memory by {driver}")
        return serve(gpus=device.uuid, cuda=kind, gpu_driver=driver, gpu_reserve_bytes="64MiB")

    return start


class Raw:
    """A client of the attach door that shows every message, and takes the descriptors that come."""

    def __init__(self, daemon: Daemon) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(daemon.config.runtime_dir / "attach.sock"))
        self._decoder = Decoder()
        self._inbox: list[dict[str, Any]] = []
        self.ask({"op": "hello", "protocol": 1, "agent": "test"})

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say something and take the next message."""
        self.sock.sendall(encode(message))
        return self.next()

    def next(self) -> dict[str, Any]:
        """The next message; descriptors are closed."""
        while not self._inbox:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, 8)
            for fd in fds:
                os.close(fd)
            assert data, "the session ended"
            self._inbox += self._decoder.feed(data)
        return self._inbox.pop(0)


def raws() -> Iterator[Callable[[Daemon], Raw]]:
    """The body of a fixture: connects such clients, and ends them after the test."""
    made: list[Raw] = []

    def connected(daemon: Daemon) -> Raw:
        made.append(Raw(daemon))
        return made[-1]

    yield connected
    for each in made:
        each.sock.close()


def read(tensor: DeviceTensor) -> bytes:
    """Return a tensor's bytes: on the fake, device memory is this process's own."""
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
