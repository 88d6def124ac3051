"""Daemons in processes of their own, with variables of their own, and commands beside them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from trims.daemon.main import shm_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COMMAND = [sys.executable, "-m", "trims.cli.main"]


class Serving:
    """`trims serve` with variables of its own."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
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
        while ("process " if wrapped else f"process {process.pid},") not in self.run("status").stdout:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.01)
        return process

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
