"""Daemons in processes of their own, with variables of their own, and commands beside them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from trims.daemon.main import shm_prefix
from trims.wire.address import CONTROL_SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COMMAND = [sys.executable, "-m", "trims.cli.main"]


class Serving:
    """`trims serve` with variables of its own."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        #: As of a daemon in this process: where its sockets are.
        self.config = SimpleNamespace(runtime_dir=folder / "run")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRIMS_")},
            "TRIMS_RUNTIME_DIR": str(folder / "run"),
            "TRIMS_STATE_DIR": str(folder / "state"),
            "TRIMS_CPU_CAPACITY_BYTES": "1MiB",
            "TRIMS_ENDPOINT": "no",
            **variables,
        }
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *flags: object, before: Sequence[str] = (), wrapped: bool = False) -> subprocess.Popen[str]:
        """Returns when it answers. What it is wrapped in may have the process that this starts."""
        command = [*before, *COMMAND, "serve", *map(str, flags)]
        process = subprocess.Popen(command, env=self.environment, stderr=subprocess.PIPE, text=True)
        self.running.append(process)
        until = time.monotonic() + 120
        while (pid := self._answering()) is None or not (wrapped or pid == process.pid):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.01)
        return process

    def _answering(self) -> int | None:
        """Return the number of the process that has the control door; None if it is not open."""
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(f"{self.environment['TRIMS_RUNTIME_DIR']}/{CONTROL_SOCKET}")
            except OSError:
                return None
            pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return pid

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Another command with the same variables."""
        return subprocess.run([*COMMAND, *map(str, words)], env=self.environment, capture_output=True, text=True,
                              check=False, timeout=300)  # fmt: skip

    def segments(self) -> list[str]:
        prefix = shm_prefix(self.folder / "state")
        return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


@contextlib.contextmanager
def serving_in(folder: Path, **variables: str) -> Iterator[Serving]:
    """Give a daemon that is not started yet for a block; nothing of it is left after that."""
    made = Serving(folder, **variables)
    try:
        yield made
    finally:
        for process in made.running:
            process.kill()
            process.communicate()
        for name in made.segments():
            os.unlink(f"/dev/shm/{name}")
