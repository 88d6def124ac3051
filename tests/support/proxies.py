"""Real proxies that ask for a user and a password, each in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "someone", "p@ss:w/rd"
_READY_S = 60.0


@contextlib.contextmanager
def proxy(folder: Path, certificate: Path | None = None) -> Iterator[str]:
    """Give HOST:PORT of a proxy for a block; it is spoken to over TLS if it gets a certificate."""
    ready = folder / "port"
    command = [
        sys.executable, "-W", "ignore", "-m", "proxy", "--hostname", "127.0.0.1", "--port", "0", "--num-workers", "1",
        "--num-acceptors", "1", "--basic-auth", f"{USER}:{PASSWORD}", "--port-file", str(ready),
        *([] if certificate is None else ["--cert-file", str(certificate), "--key-file", str(certificate)]),
    ]  # fmt: skip
    log = folder / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=folder) as process:
        try:
            until = time.monotonic() + _READY_S
            while not (ready.exists() and ready.read_text().strip()):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            yield f"127.0.0.1:{ready.read_text().split()[0]}"
        finally:
            process.terminate()
            process.wait(_READY_S)
